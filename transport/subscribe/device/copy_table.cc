// SPDX-License-Identifier: Apache-2.0
#include "transport/subscribe/device/copy_table.h"

#include <algorithm>

#include "core/gpu/kernels/tables.h"

namespace freshet::detail {
namespace {

constexpr std::uint32_t kTableThreadsMax = 1 << 17;  // They keep a bus busy. The server's kernels need the rest.
constexpr std::uint64_t kWarpBytesMax = 2048;        // Of a tensor that one warp copies.

}  // namespace

Result<std::unique_ptr<CopyTable>> CopyTable::make(const std::shared_ptr<gpu::Device>& device, std::size_t capacity) {
  const std::uint64_t bytes = capacity * sizeof(gpu::CopyTensor);
  auto table = std::unique_ptr<CopyTable>(new CopyTable);
  FRESHET_ASSIGN(table->on_device_, device->allocate(bytes));
  FRESHET_ASSIGN(table->pages_, gpu::HostPages::make(*device, bytes));
  return table;
}

Status CopyTable::queue(gpu::Device& device, gpu::StreamHandle stream, std::span<const gpu::CopyTensor> rows) {
  const std::span<gpu::CopyTensor> mine(reinterpret_cast<gpu::CopyTensor*>(pages_->begin()), rows.size());
  std::copy(rows.begin(), rows.end(), mine.begin());
  const std::uint64_t tiles = gpu::number_tiles(mine);
  FRESHET_TRY(device.copy(stream, on_device_.address(), mine.data(), mine.size_bytes()));
  const bool are_tiny =
      std::all_of(rows.begin(), rows.end(), [](const auto& row) { return row.bytes <= kWarpBytesMax; });
  const std::uint32_t threads = are_tiny ? 32 : gpu::kCopyThreadsMax;
  const auto blocks = static_cast<std::uint32_t>(std::min<std::uint64_t>(tiles, kTableThreadsMax / threads));
  return device.launch(stream, {.kernel = gpu::Kernel::kCopy, .blocks = blocks, .threads = threads, .shared_bytes = 0},
                       gpu::CopyArguments{.tensors = reinterpret_cast<const gpu::CopyTensor*>(on_device_.address()),
                                          .tensor_count = mine.size(),
                                          .tiles = tiles});
}

}  // namespace freshet::detail
