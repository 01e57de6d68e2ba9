// SPDX-License-Identifier: Apache-2.0
#pragma once

/// One GPU's part of the publisher's copies: two streams of ours, the arena's slabs as the driver knows them, and the
/// tables of launches. One stream runs the work that the trainer's stream waits for; the other one brings bytes to host
/// memory behind it. One thread at a time, but for queue() and give_back().
///
/// A slab that the driver does not register is copied into all the same: the driver then copies while the caller waits,
/// as it does for any memory that it does not know. The log says so once.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/mutex.h"
#include "core/gpu/device.h"
#include "core/gpu/digester.h"
#include "core/gpu/host_pages.h"
#include "core/gpu/packer.h"
#include "transport/publish/tensor_copier.h"

namespace freshet {

class DeviceLane {
 public:
  /// Host memory that copies end in.
  struct HostSlab {
    Bytes memory;
    std::shared_ptr<const void> owner;
    bool is_registered = false;  ///< By one of the lanes that are given it: registered memory is so for all devices.
  };

  /// What queued work uses.
  struct Used {
    std::unique_ptr<gpu::HostPages> rows;
    gpu::Digester::Job digests;
    std::shared_ptr<gpu::Packer::Job> packed;
  };

  /// `ordinal` is for messages.
  static Result<std::unique_ptr<DeviceLane>> open(std::int32_t ordinal, std::shared_ptr<gpu::Device> device);

  gpu::Device& device() { return *device_; }
  const std::shared_ptr<gpu::Device>& shared_device() const { return device_; }
  gpu::StreamHandle stream() const { return stream_.handle(); }
  /// For what the trainer's stream does not wait for.
  gpu::StreamHandle stream_behind() const { return behind_.handle(); }

  /// Registers the slabs that are new: `slabs` only grows. An error when the device is lost, and where somebody else
  /// has registered a part of a slab: the driver would copy to the pages that it was given then.
  Status register_slabs(std::span<HostSlab> slabs) FRESHET_EXCLUDES(mutex_);
  /// Whether `from` begins in memory that this device reads. The error names the tensor.
  Status check(const TensorCopy& copy);
  /// What stream() gets from now on runs after all that `theirs` has so far.
  Status follow(gpu::StreamHandle theirs);
  /// Queues the copies on one of our streams. Any thread.
  Status queue(gpu::StreamHandle stream, std::span<const TensorCopy> copies, Used& used) FRESHET_EXCLUDES(mutex_);
  /// Queues one pass over copies that end in this device's memory, on stream(): copies, compares, packs. Returns which
  /// of the copies have their bytes by it; the others are for queue() and digest(). Where the device cannot do it, none
  /// are, and the log says once why. An error when the device is lost.
  Result<std::vector<bool>> pack(std::span<const TensorCopy> copies, Used& used);
  /// Queues the rest of that pass, which the copies' sources are not needed for.
  Status finish_packed(Used& used);
  /// Queues copies of deltas to host memory, one behind the other in used.rows, on stream_behind(). False: there is no
  /// such memory, and nothing was queued. Any thread.
  Result<bool> bring_deltas(std::span<const TensorCopy> copies, Used& used);
  /// Queues the digests of memory of this device, on stream(). Where the device cannot form them, used.digests is not
  /// whole, and the log says once why. An error when the device is lost.
  Status digest(std::span<const Bytes> ranges, Used& used);
  /// What no queued work uses any more. Any thread.
  void give_back(Used used);

 private:
  DeviceLane(std::int32_t ordinal, std::shared_ptr<gpu::Device> device, gpu::Stream stream, gpu::Stream behind)
      : ordinal_(ordinal),
        device_(std::move(device)),
        stream_(std::move(stream)),
        behind_(std::move(behind)),
        digester_(device_),
        packer_(device_) {}

  Status register_slab(HostSlab& slab);
  bool is_registered(Bytes memory) const FRESHET_REQUIRES(mutex_);
  std::vector<bool> choose_for_launch(std::span<const TensorCopy> copies) const FRESHET_EXCLUDES(mutex_);
  /// False: this device launches no kernel, and each copy is the driver's.
  Result<bool> launch(gpu::StreamHandle stream, std::vector<gpu::CopyTensor> rows, Used& used) FRESHET_EXCLUDES(mutex_);
  Error named(const TensorCopy& copy, Error error) const;

  const std::int32_t ordinal_;
  const std::shared_ptr<gpu::Device> device_;
  gpu::Stream stream_;
  gpu::Stream behind_;
  gpu::HostPagePool pages_;
  gpu::Digester digester_;
  gpu::Packer packer_;
  std::vector<gpu::Registration> registrations_;
  bool said_refused_ = false;
  bool digests_ = true;
  bool said_no_digests_ = false;
  bool packs_ = true;
  bool said_no_pass_ = false;

  mutable Mutex mutex_;
  std::size_t slabs_known_ FRESHET_GUARDED_BY(mutex_) = 0;
  std::vector<Bytes> registered_ FRESHET_GUARDED_BY(mutex_);
  bool launches_ FRESHET_GUARDED_BY(mutex_) = true;
};

}  // namespace freshet
