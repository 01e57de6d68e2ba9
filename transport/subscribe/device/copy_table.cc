// SPDX-License-Identifier: Apache-2.0
#include "transport/subscribe/device/copy_table.h"

#include <algorithm>
#include <cstdlib>

#include "core/base/format.h"
#include "core/gpu/kernels/tables.h"

namespace freshet::detail {
namespace {

constexpr std::size_t kRowsPageBytes = 4096;
constexpr std::uint32_t kTableThreadsMax = 1 << 17;  // They keep a bus busy. The server's kernels need the rest.
constexpr std::uint64_t kWarpBytesMax = 2048;        // Of a tensor that one warp copies.

}  // namespace

Result<std::unique_ptr<CopyTable>> CopyTable::make(const std::shared_ptr<gpu::Device>& device, std::size_t capacity) {
  const std::size_t bytes = (capacity * sizeof(gpu::CopyTensor) + kRowsPageBytes - 1) / kRowsPageBytes * kRowsPageBytes;
  auto table = std::unique_ptr<CopyTable>(new CopyTable);
  table->capacity_ = bytes / sizeof(gpu::CopyTensor);
  table->rows_.reset(static_cast<gpu::CopyTensor*>(std::aligned_alloc(kRowsPageBytes, bytes)), &std::free);
  if (table->rows_ == nullptr) return fail(Code::out_of_space, format("{} bytes of host memory are not there", bytes));
  FRESHET_ASSIGN(table->on_device_, device->allocate(bytes));
  if (auto registered = device->register_host(table->rows_.get(), bytes, gpu::HostAccess::read_write, table->rows_)) {
    table->registration_ = std::move(*registered);
  }
  return table;
}

Status CopyTable::queue(gpu::Device& device, gpu::StreamHandle stream, std::span<const gpu::CopyTensor> rows) {
  const std::span<gpu::CopyTensor> mine(rows_.get(), rows.size());
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
