// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The table of one launch of Kernel::kCopy: many small tensors are one copy of the table to the device, and one
/// launch, instead of a call of the driver for each.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>

#include "core/gpu/device.h"
#include "core/gpu/host_pages.h"

namespace freshet::detail {

/// One thread at a time.
class CopyTable {
 public:
  /// Of `capacity` rows or a little more. out_of_space: the device, or the host, has no memory for it. unsupported: the
  /// device registers no host memory.
  static Result<std::unique_ptr<CopyTable>> make(const std::shared_ptr<gpu::Device>& device, std::size_t capacity);

  std::size_t capacity() const { return std::min(pages_->bytes(), on_device_.bytes()) / sizeof(gpu::CopyTensor); }

  /// Queues the copies of these rows; the device must reach all their addresses. Until they are done, the table must
  /// stay, and queues no others. unsupported: this build or device has no kernels; nothing was queued then but the
  /// table's own copy. REQUIRES: 1 to capacity() rows, no two of them write the same byte.
  Status queue(gpu::Device& device, gpu::StreamHandle stream, std::span<const gpu::CopyTensor> rows);

 private:
  CopyTable() = default;

  std::unique_ptr<gpu::HostPages> pages_;
  gpu::Memory on_device_;
};

}  // namespace freshet::detail
