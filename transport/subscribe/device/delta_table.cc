// SPDX-License-Identifier: Apache-2.0
#include "transport/subscribe/device/delta_table.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/gpu/kernels/tables.h"

namespace freshet::detail {
namespace {

constexpr std::uint64_t kTableBytesMin = std::uint64_t{64} << 10;
constexpr std::uint64_t kApplyBlocksMax = 1056;  // So many are at the same time on a large device.

}  // namespace

DeltaTable::Layout DeltaTable::lay_out(std::span<const Row> rows) {
  Layout layout;
  std::uint64_t blocks_bytes = 0;
  for (const Row& row : rows) {
    layout.tiles += row.delta->places.places.size();
    blocks_bytes += row.delta->places.blocks_bytes;
  }
  layout.places = (rows.size() * sizeof(gpu::ApplyTensor) + kWord - 1) / kWord * kWord;
  layout.results = layout.places + layout.tiles * sizeof(gpu::BlockPlace);
  layout.blocks = layout.results + rows.size() * sizeof(gpu::ApplyResult);
  layout.end = layout.blocks + blocks_bytes;
  return layout;
}

Result<std::unique_ptr<DeltaTable>> DeltaTable::make(const std::shared_ptr<gpu::Device>& device, std::uint64_t bytes) {
  auto table = std::unique_ptr<DeltaTable>(new DeltaTable);
  // First what fails sooner where there is none left.
  FRESHET_ASSIGN(table->on_device_, device->allocate(std::max(bytes, kTableBytesMin)));
  FRESHET_ASSIGN(table->pages_, gpu::HostPages::make(*device, table->on_device_.bytes()));
  return table;
}

void DeltaTable::write(std::span<const Row> rows) {
  std::vector<gpu::ApplyTensor> table;
  std::vector<std::uint64_t> tiles;
  std::byte* places = pages_->begin() + layout_.places;
  std::uint64_t blocks = layout_.blocks;
  expected_.clear();
  for (const Row& row : rows) {
    const gpu::PayloadPlaces& of_row = row.delta->places;
    table.push_back({.memory = reinterpret_cast<std::uint8_t*>(row.memory),
                     .elements = gpu::delta_elements(row.delta->spec, of_row.info.elements),
                     .blocks = reinterpret_cast<const std::uint8_t*>(on_device_.address() + blocks),
                     .blocks_bytes = of_row.blocks_bytes,
                     .first_tile = 0});
    tiles.push_back(of_row.places.size());
    std::memcpy(places, of_row.places.data(), of_row.places.size() * sizeof(gpu::BlockPlace));
    places += of_row.places.size() * sizeof(gpu::BlockPlace);
    const Bytes bytes = row.delta->blocks();
    std::memcpy(pages_->begin() + blocks, bytes.data(), bytes.size());
    blocks += bytes.size();
    expected_.push_back({.info = of_row.info, .places = {}, .sum_low = of_row.sum_low, .sum_high = of_row.sum_high});
  }
  gpu::number_tiles(std::span(table), tiles);
  std::memcpy(pages_->begin(), table.data(), table.size() * sizeof(gpu::ApplyTensor));
  std::memset(pages_->begin() + layout_.results, 0, layout_.blocks - layout_.results);
}

Status DeltaTable::queue(gpu::Device& device, gpu::StreamHandle stream, std::span<const Row> rows) {
  layout_ = lay_out(rows);
  write(rows);
  std::byte* const memory = on_device_.address();
  FRESHET_TRY(device.copy(stream, memory, pages_->begin(), layout_.end));
  FRESHET_TRY(
      device.launch(stream,
                    {.kernel = gpu::Kernel::kApply,
                     .blocks = static_cast<std::uint32_t>(std::min(layout_.tiles, kApplyBlocksMax)),
                     .threads = gpu::kDeltaThreadsMax},
                    gpu::ApplyArguments{.tensors = reinterpret_cast<const gpu::ApplyTensor*>(memory),
                                        .tensor_count = rows.size(),
                                        .tiles = layout_.tiles,
                                        .places = reinterpret_cast<const gpu::BlockPlace*>(memory + layout_.places),
                                        .results = reinterpret_cast<gpu::ApplyResult*>(memory + layout_.results)}));
  return device.copy(stream, pages_->begin() + layout_.results, memory + layout_.results,
                     layout_.blocks - layout_.results);
}

Status DeltaTable::check(std::size_t row) const {
  gpu::ApplyResult result;
  std::memcpy(&result, pages_->begin() + layout_.results + row * sizeof(result), sizeof(result));
  return gpu::check_applied(expected_[row], result);
}

}  // namespace freshet::detail
