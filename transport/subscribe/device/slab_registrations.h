// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The registrations of mapped slabs with one device. A copy from a registered slab runs at the bus' speed, and the
/// host does not wait for it.
///
/// A slab is registered once, by the first refresh that copies from it, and for all tables of all devices of this
/// process: a driver registers memory for all of them, and refuses it to the second that asks. This costs the host
/// about 0.2 ms a MiB. The registration ends before the slab is unmapped: the driver would take the pages of a later
/// mapping at the same address for the old ones. So each registration keeps its mapping, and end_unused() ends those
/// that nothing else keeps. What another part of the program registered may have such old pages, so nothing is copied
/// from it.

#include <cstddef>
#include <list>
#include <memory>

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

  /// Registers the slab, if it is not registered yet. True: the device reads the slab's memory by its address. False:
  /// the slab cannot be registered, and the first reason is logged; or another thread registers it, or ends its
  /// registration, at this moment. The driver then copies as it can. failed_precondition: the device is lost, or
  /// another part of this program registered memory of the slab; the next call asks again.
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
  class Registered;  ///< A registration, for all devices that use it.
  struct Entry {
    explicit Entry(const Snapshot::Piece& of) : memory(of.memory), share(std::make_shared<Share>(of.mapping)) {}
    Bytes memory;
    std::shared_ptr<const Share> share;
    std::shared_ptr<Registered> registered;  // Null: the slab is not registered.
  };

  Result<std::shared_ptr<Registered>> register_memory(const Entry& entry);
  void say_why_not(const Entry& entry, const Error& error) FRESHET_EXCLUDES(mutex_);

  const std::shared_ptr<gpu::Device> device_;
  Mutex mutex_;
  std::list<Entry> entries_ FRESHET_GUARDED_BY(mutex_);
  bool said_why_not_ FRESHET_GUARDED_BY(mutex_) = false;
};

}  // namespace freshet::detail
