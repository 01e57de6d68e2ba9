// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The registrations of mapped slabs with one device. A copy from a registered slab runs at the bus' speed, and the
/// host does not wait for it.
///
/// A slab is registered once, by the first refresh that copies from it, and for all tables of all devices of this
/// process: a driver registers memory for all of them, and refuses it to the second that asks. This costs the host
/// about 0.2 ms a MiB. The registration ends before the slab is unmapped: the driver would take the pages of a later
/// mapping at the same address for the old ones. So each registration keeps its mapping, and end_unused() ends those
/// that nothing else keeps. If another part of the program registered a slab, the driver may still know older pages at
/// its address. So nothing is copied from it.

#include <cstddef>
#include <list>
#include <memory>
#include <optional>

#include "core/base/mutex.h"
#include "core/gpu/device.h"
#include "transport/subscriber.h"

namespace freshet::detail {

/// Any thread.
class SlabRegistrations {
 public:
  /// The device's: all callers with the same Device have the same registrations.
  static std::shared_ptr<SlabRegistrations> of(const std::shared_ptr<gpu::Device>& device);

  explicit SlabRegistrations(std::shared_ptr<gpu::Device> device) : device_(std::move(device)) {}
  /// Ends the registrations that no other device uses, as ~Registration().
  ~SlabRegistrations();
  SlabRegistrations(const SlabRegistrations&) = delete;
  SlabRegistrations& operator=(const SlabRegistrations&) = delete;

  /// Registers the slab, if it is not registered yet; one thread of the process at a time. True: the device reads the
  /// slab's memory by its address. False: the slab cannot be registered, and the first reason is logged; or its
  /// registration ends at this moment; or it was that of a device that is lost, and stays with the driver. The driver
  /// then copies as it can. failed_precondition: the device is lost, or another part of this program registered memory
  /// of the slab; the next call asks again.
  Result<bool> ensure(const Snapshot::Piece& slab) FRESHET_EXCLUDES(mutex_);

  /// Ends the registrations of slabs that nothing else keeps mapped: those of a publisher that has ended. Waits up to
  /// 100 ms for the work that streams made by this Device have queued. What cannot end yet ends by a later call.
  void end_unused() FRESHET_EXCLUDES(mutex_);

  /// How many slabs are registered now.
  std::size_t count() FRESHET_EXCLUDES(mutex_);

 private:
  /// Keeps a mapping, and is counted among all shares of this process: several devices may register one slab.
  class Share {
   public:
    explicit Share(std::shared_ptr<const void> mapping);
    ~Share();
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;
    const std::shared_ptr<const void>& mapping() const { return mapping_; }

   private:
    const std::shared_ptr<const void> mapping_;
  };
  struct Entry {
    Bytes memory;
    std::shared_ptr<const Share> share;
    bool is_registered = false;  // It is then one of the users of the address' registration.
  };

  std::optional<bool> find(const Snapshot::Piece& slab) FRESHET_EXCLUDES(mutex_);
  Result<gpu::Registration> register_memory(const Snapshot::Piece& slab, const std::shared_ptr<const Share>& owner);
  void say_why_not(const Snapshot::Piece& slab, const Error& error) FRESHET_EXCLUDES(mutex_);

  const std::shared_ptr<gpu::Device> device_;
  Mutex mutex_;
  std::list<Entry> entries_ FRESHET_GUARDED_BY(mutex_);
  bool said_why_not_ FRESHET_GUARDED_BY(mutex_) = false;
};

}  // namespace freshet::detail
