// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The copier of GPUs' memory, for publishers and for checkpoints. issue() queues copies on streams of ours and
/// returns; no thread of the host waits for a device, except for the copier's own.
///
/// Order, for each stream that a tensor names: our stream waits, on the device, for what that stream has at the call,
/// then copies. Before issue() returns, that stream waits, on the device, for our copies. So a version has the values
/// that the stream had queued at the call, and each later write or free of a tensor on that stream comes after the
/// copy. A copy that ends in device memory (TensorCopy::via) is one pass there with its digest, and with a delta where
/// it is paired. bring() takes it from there to host memory, on a stream that no other work waits for: the delta, or
/// all bytes, as measured costs say (transport/publish/bring_costs.h).
///
/// The driver is opened by the first issue(). A publisher of host memory never opens it.

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/gpu/device.h"
#include "transport/publish/bring_costs.h"
#include "transport/publish/device_lane.h"
#include "transport/publish/tensor_copier.h"

namespace freshet {

class DeviceCopier final : public TensorCopier {
 public:
  /// `platform`: null opens NVIDIA's driver. `end_at_most`: how long end() and the destructor let copies run.
  explicit DeviceCopier(std::shared_ptr<gpu::Platform> platform, Duration end_at_most = std::chrono::seconds(30),
                        BringCosts::Deltas deltas = BringCosts::Deltas::measured);
  /// Waits for the copies that were issued, as end() does. If some still run then, their streams, the memory that they
  /// write and its registrations stay until the process ends, and the log says so once. Otherwise the driver would take
  /// other memory at this address for the registered one.
  ~DeviceCopier() override;
  DeviceCopier(const DeviceCopier&) = delete;
  DeviceCopier& operator=(const DeviceCopier&) = delete;

  /// It takes managed memory too.
  MemoryKind memory_kind() const override { return MemoryKind::device; }
  void add_slab(Bytes memory, std::shared_ptr<const void> owner) override {
    slabs_.push_back({.memory = memory, .owner = std::move(owner)});
  }
  Result<std::shared_ptr<gpu::Device>> device_of(std::int32_t ordinal) override;
  void end() override;
  /// It has digests where all bytes end in device memory and that device has formed them. unavailable: no driver, no
  /// device, or a driver that is too old. invalid_argument: the device is not there, or a tensor's address is not its
  /// memory. failed_precondition: the device is lost to this process.
  Status issue(std::vector<TensorCopy> copies, Done done) override;
  Status bring(std::span<const TensorCopy> copies) override;

 private:
  /// What forms a copy's digest.
  enum class By : std::uint8_t { nobody, host, digester, packer };  ///< `nobody`: it has no bytes.
  /// Work of one device that somebody waits for.
  struct Part {
    DeviceLane* lane = nullptr;
    gpu::Event done;
    DeviceLane::Used used;
    bool runs_on = false;  ///< The thread waits no longer, and the device still works on it.
  };
  struct Issued {
    std::vector<By> by;  ///< By copy.
    std::vector<Part> parts;
    Done done;
    std::optional<Error> failed;  ///< Some of its copies were not queued.
  };

  Status start();
  Result<DeviceLane*> lane_of(std::int32_t ordinal);
  Status queue(std::span<const TensorCopy> copies, Issued& issued);
  Status queue_on(DeviceLane& lane, std::span<const TensorCopy> copies, std::span<const std::size_t> which,
                  Issued& issued);
  Status follow_others(DeviceLane& lane);
  void complete();
  static FormedWithCopies formed_by(const Issued& issued);
  Result<DeviceLane*> lane_that_has(const std::byte* address) FRESHET_EXCLUDES(mutex_);
  Status wait_for(Part& part) FRESHET_EXCLUDES(mutex_);
  void give_back(Part part) FRESHET_EXCLUDES(mutex_);
  Status finish_behind(Part& part, Status queued) FRESHET_EXCLUDES(mutex_);
  Status bring_whole(DeviceLane& lane, std::span<const TensorCopy> copies);
  Status bring_deltas(DeviceLane& lane, std::span<const TensorCopy> copies, std::vector<TensorCopy>& whole);
  Status bring_some_deltas(DeviceLane& lane, std::span<const TensorCopy> copies, std::vector<TensorCopy>& whole);
  void leak_lanes();

  const Duration end_at_most_;

  // The bringing thread's.
  BringCosts costs_;
  bool said_bad_delta_ = false;

  // The issuing thread's.
  std::shared_ptr<gpu::Platform> platform_;
  std::vector<DeviceLane::HostSlab> slabs_;
  std::map<std::int32_t, std::unique_ptr<DeviceLane>> lanes_;  ///< By ordinal. A lane stays as long as the copier.

  Mutex mutex_;
  CondVar changed_;
  std::vector<DeviceLane*> opened_ FRESHET_GUARDED_BY(mutex_);  ///< The lanes, for other threads.
  std::deque<Issued> queue_ FRESHET_GUARDED_BY(mutex_);
  std::optional<Time> ends_ FRESHET_GUARDED_BY(mutex_);  ///< When the thread waits no longer.
  std::vector<Part> running_on_ FRESHET_GUARDED_BY(mutex_);
  std::thread thread_;  ///< Begun by the first issue().
};

}  // namespace freshet
