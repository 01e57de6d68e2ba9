// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The table of one launch of Kernel::kApply: deltas that came from another host go to the device, and are applied
/// there to a server's tensors, in place. The kernel checks each block's places before it writes the block, and proves
/// what it did by the deltas' sums.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/gpu/device.h"
#include "core/gpu/host_pages.h"
#include "transport/subscribe/fetch/received_delta.h"

namespace freshet::detail {

/// One thread at a time.
class DeltaTable {
 public:
  struct Row {
    std::byte* memory = nullptr;  ///< Of the device; has the delta's base.
    const ReceivedDelta* delta = nullptr;
  };

  /// Of `bytes` of the device's memory, 64 KiB at least, and as much of the host's. out_of_space: the device, or the
  /// host, has none for it. unsupported: the device registers no host memory.
  static Result<std::unique_ptr<DeltaTable>> make(const std::shared_ptr<gpu::Device>& device, std::uint64_t bytes);
  /// For deltas of so many bytes, as ReceivedDelta::table_bytes().
  std::uint64_t capacity() const { return std::min(pages_->bytes(), on_device_.bytes()) - kWord; }

  /// Queues all of it. The deltas are copied at once; until the device has done it, the table must stay, and queues no
  /// others. unsupported: this build or device has no kernels; no tensor was touched then. REQUIRES: rows, of
  /// capacity() at most, and no two with one memory.
  Status queue(gpu::Device& device, gpu::StreamHandle stream, std::span<const Row> rows);

  /// Whether the row's memory has the delta's target. corrupt: it did not have the base, and has neither now. REQUIRES:
  /// the device has done all.
  Status check(std::size_t row) const;

 private:
  static constexpr std::uint64_t kWord = 16;  ///< Places begin at a multiple of it.

  /// Where things lie, in the pages as in the device's memory.
  struct Layout {
    std::uint64_t places = 0;
    std::uint64_t results = 0;
    std::uint64_t blocks = 0;
    std::uint64_t end = 0;
    std::uint64_t tiles = 0;
  };
  static Layout lay_out(std::span<const Row> rows);
  void write(std::span<const Row> rows);

  DeltaTable() = default;
  std::unique_ptr<gpu::HostPages> pages_;
  gpu::Memory on_device_;
  Layout layout_;
  std::vector<gpu::PayloadPlaces> expected_;  ///< By row; without places.
};

}  // namespace freshet::detail
