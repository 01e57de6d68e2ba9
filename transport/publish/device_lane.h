// SPDX-License-Identifier: Apache-2.0
#pragma once

/// One GPU's part of the publisher's copies: a stream of ours, the arena's slabs as the driver knows them, and the
/// tables of launches. One thread at a time, but for give_back().
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
#include "transport/publish/tensor_copier.h"

namespace freshet {

/// Host memory that the driver knows, for the rows of one launch.
class RowPages {
 public:
  static Result<std::unique_ptr<RowPages>> make(gpu::Device& device, std::uint64_t bytes);
  ~RowPages();
  RowPages(const RowPages&) = delete;
  RowPages& operator=(const RowPages&) = delete;

  std::byte* begin() const { return begin_; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  RowPages(std::byte* begin, std::uint64_t bytes) : begin_(begin), bytes_(bytes) {}

  std::byte* const begin_;
  const std::uint64_t bytes_;
  gpu::Registration registration_;
};

class DeviceLane {
 public:
  /// `ordinal` is for messages.
  static Result<std::unique_ptr<DeviceLane>> open(std::int32_t ordinal, std::shared_ptr<gpu::Device> device);

  gpu::Device& device() { return *device_; }
  const std::shared_ptr<gpu::Device>& shared_device() const { return device_; }
  gpu::StreamHandle stream() const { return stream_.handle(); }

  /// Registers the slabs that are new: `slabs` only grows. An error when the device is lost.
  Status register_slabs(std::span<const Bytes> slabs);
  /// Whether `from` begins in memory that this device reads. The error names the tensor.
  Status check(const TensorCopy& copy);
  /// What our stream gets from now on runs after all that `theirs` has so far.
  Status follow(gpu::StreamHandle theirs);
  /// Queues the copies on our stream. `pages` gets what the queued work reads.
  Status queue(std::span<const TensorCopy> copies, std::vector<std::unique_ptr<RowPages>>& pages);

  /// Pages that no queued work reads. Any thread.
  void give_back(std::vector<std::unique_ptr<RowPages>> pages) FRESHET_EXCLUDES(mutex_);

 private:
  DeviceLane(std::int32_t ordinal, std::shared_ptr<gpu::Device> device, gpu::Stream stream)
      : ordinal_(ordinal), device_(std::move(device)), stream_(std::move(stream)) {}

  bool is_registered(Bytes memory) const;
  bool is_for_launch(const TensorCopy& copy) const;
  Result<std::unique_ptr<RowPages>> take_pages(std::uint64_t bytes) FRESHET_EXCLUDES(mutex_);
  /// False: this device launches no kernel, and each copy is the driver's.
  Result<bool> launch(std::vector<gpu::CopyTensor> rows, std::vector<std::unique_ptr<RowPages>>& pages);
  Error named(const TensorCopy& copy, Error error) const;

  const std::int32_t ordinal_;
  const std::shared_ptr<gpu::Device> device_;
  gpu::Stream stream_;
  std::size_t slabs_known_ = 0;
  std::vector<Bytes> registered_;
  std::vector<gpu::Registration> registrations_;
  bool said_refused_ = false;
  bool launches_ = true;

  Mutex mutex_;
  std::vector<std::unique_ptr<RowPages>> free_pages_ FRESHET_GUARDED_BY(mutex_);
};

}  // namespace freshet
