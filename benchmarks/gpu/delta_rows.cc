// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/gpu/delta_rows.h"

#include <algorithm>

#include "core/base/format.h"
#include "core/gpu/kernels/delta_payload.h"
#include "core/gpu/kernels/tables.h"

namespace freshet::benchmarks {
namespace {

constexpr std::uint64_t kDeltaBlocksMax = 1056;  // Eight on each processor of an H100.
constexpr std::uint64_t kPackedHeads = 12 + 3 * 5;

std::uint32_t blocks_for(std::uint64_t tiles) { return static_cast<std::uint32_t>(std::min(tiles, kDeltaBlocksMax)); }

}  // namespace

Result<std::unique_ptr<DeltaOnDevice>> DeltaOnDevice::make(ModelOnDevice& model) {
  auto delta = std::unique_ptr<DeltaOnDevice>(new DeltaOnDevice(model));
  FRESHET_TRY(delta->write_tables());
  return delta;
}

Result<gpu::Memory> DeltaOnDevice::upload(std::span<const std::byte> bytes) {
  FRESHET_ASSIGN(gpu::Memory memory, model_.device().allocate(bytes.size()));
  FRESHET_TRY(model_.copy(memory.address(), bytes.data(), bytes.size()));
  FRESHET_TRY(model_.finish());
  return memory;
}

Status DeltaOnDevice::write_tables() {
  const std::uint64_t elements = model_.tensor_bytes() / ModelOnDevice::kElementBytes;
  const std::uint64_t chunks = (elements + gpu::chunk_elements(ModelOnDevice::kElementBytes) - 1) /
                               gpu::chunk_elements(ModelOnDevice::kElementBytes);
  // Heads, gap bytes, two difference bytes for each change.
  blocks_bytes_max_ = chunks * kPackedHeads + elements / 255 + 3 * model_.changed_of_tensor() + 16;
  blocks_bytes_max_ = blocks_bytes_max_ / 16 * 16 + 16;
  FRESHET_ASSIGN(blocks_, model_.device().allocate(model_.tensors() * blocks_bytes_max_));

  std::vector<gpu::PackTensor> rows;
  for (std::uint64_t i = 0; i < model_.tensors(); ++i) {
    const auto at = [&](std::byte* model) {
      return reinterpret_cast<std::uint8_t*>(model + i * model_.tensor_bytes());
    };
    const DeltaSpec spec{
        .dtype = DType::bf16, .base = {.tensor = static_cast<std::uint32_t>(i)}, .target = {.tensor = 0}};
    rows.push_back({.base = at(model_.old_version()),
                    .target = at(model_.new_version()),
                    .fresh = nullptr,
                    .elements = gpu::delta_elements(spec, elements),
                    .blocks = reinterpret_cast<std::uint8_t*>(blocks_.address() + i * blocks_bytes_max_),
                    .blocks_bytes_max = blocks_bytes_max_,
                    .sums = nullptr,
                    .first_tile = 0});
  }
  tiles_ = gpu::number_tiles(std::span(rows));
  FRESHET_ASSIGN(without_copy_, upload(std::as_bytes(std::span(rows))));
  for (std::uint64_t i = 0; i < rows.size(); ++i) {
    rows[i].fresh = reinterpret_cast<std::uint8_t*>(model_.fresh() + i * model_.tensor_bytes());
    rows[i].base = rows[i].fresh;  // In place, as a publisher does it: pack_ms() writes the old version there first.
  }
  FRESHET_ASSIGN(with_copy_, upload(std::as_bytes(std::span(rows))));
  FRESHET_ASSIGN(pack_results_, model_.device().allocate(rows.size() * sizeof(gpu::PackResult)));
  FRESHET_ASSIGN(apply_results_, model_.device().allocate(rows.size() * sizeof(gpu::ApplyResult)));
  FRESHET_ASSIGN(places_, model_.device().allocate(tiles_ * sizeof(gpu::BlockPlace)));
  FRESHET_ASSIGN(states_, model_.device().allocate((tiles_ + 1) * sizeof(std::uint64_t)));
  return {};
}

Status DeltaOnDevice::zero(const gpu::Memory& memory, std::uint64_t bytes) {
  const std::uint64_t blocks = (bytes + gpu::kFillThreadsMax - 1) / gpu::kFillThreadsMax;
  return model_.device().launch(
      model_.stream(), {.kernel = gpu::Kernel::kFill, .blocks = blocks_for(blocks), .threads = gpu::kFillThreadsMax},
      gpu::FillArguments{.to = reinterpret_cast<std::uint8_t*>(memory.address()), .bytes = bytes, .value = 0});
}

template <typename Row>
Result<std::vector<Row>> DeltaOnDevice::read(const gpu::Memory& memory) {
  std::vector<Row> rows(model_.tensors());
  const auto bytes = std::as_writable_bytes(std::span(rows));
  FRESHET_TRY(model_.copy(bytes.data(), memory.address(), bytes.size()));
  FRESHET_TRY(model_.finish());
  return rows;
}

Status DeltaOnDevice::write_old() {
  FRESHET_TRY(model_.copy(model_.fresh(), model_.old_version(), model_.bytes()));
  return model_.finish();
}

Result<double> DeltaOnDevice::pack_ms(bool copies) {
  const gpu::Memory& rows = copies ? with_copy_ : without_copy_;
  if (copies) FRESHET_TRY(write_old());
  FRESHET_ASSIGN(const double ms, model_.ms([&]() -> Status {
    FRESHET_TRY(zero(pack_results_, model_.tensors() * sizeof(gpu::PackResult)));
    FRESHET_TRY(zero(states_, (tiles_ + 1) * sizeof(std::uint64_t)));
    return model_.device().launch(
        model_.stream(), {.kernel = gpu::Kernel::kPack, .blocks = blocks_for(tiles_), .threads = gpu::kDeltaThreadsMax},
        gpu::PackArguments{.tensors = reinterpret_cast<const gpu::PackTensor*>(rows.address()),
                           .tensor_count = model_.tensors(),
                           .tiles = tiles_,
                           .results = reinterpret_cast<gpu::PackResult*>(pack_results_.address()),
                           .places = reinterpret_cast<gpu::BlockPlace*>(places_.address()),
                           .states = reinterpret_cast<std::uint64_t*>(states_.address())});
  }));
  FRESHET_ASSIGN(const auto results, read<gpu::PackResult>(pack_results_));
  std::vector<gpu::ApplyTensor> applied;
  for (std::uint64_t i = 0; i < results.size(); ++i) {
    if (results[i].changed != model_.changed_of_tensor() || results[i].bytes > blocks_bytes_max_) {
      return fail(Code::corrupt,
                  format("tensor {}: {} changes in {} bytes were packed, of {} in at most {}", i, results[i].changed,
                         results[i].bytes, model_.changed_of_tensor(), blocks_bytes_max_));
    }
    const DeltaSpec spec{
        .dtype = DType::bf16, .base = {.tensor = static_cast<std::uint32_t>(i)}, .target = {.tensor = 0}};
    applied.push_back({.memory = reinterpret_cast<std::uint8_t*>(model_.fresh() + i * model_.tensor_bytes()),
                       .elements = gpu::delta_elements(spec, model_.tensor_bytes() / ModelOnDevice::kElementBytes),
                       .blocks = reinterpret_cast<const std::uint8_t*>(blocks_.address() + i * blocks_bytes_max_),
                       .blocks_bytes = results[i].bytes,
                       .first_tile = 0});
  }
  const std::vector<std::uint64_t> blocks(results.size(), tiles_ / results.size());
  gpu::number_tiles(std::span(applied), blocks);
  FRESHET_ASSIGN(applied_, upload(std::as_bytes(std::span(applied))));
  if (copies) FRESHET_TRY(model_.check_new(model_.fresh()));
  return ms;
}

Result<double> DeltaOnDevice::apply_ms() {
  FRESHET_TRY(write_old());
  FRESHET_ASSIGN(const double ms, model_.ms([&]() -> Status {
    FRESHET_TRY(zero(apply_results_, model_.tensors() * sizeof(gpu::ApplyResult)));
    return model_.device().launch(
        model_.stream(),
        {.kernel = gpu::Kernel::kApply, .blocks = blocks_for(tiles_), .threads = gpu::kDeltaThreadsMax},
        gpu::ApplyArguments{.tensors = reinterpret_cast<const gpu::ApplyTensor*>(applied_.address()),
                            .tensor_count = model_.tensors(),
                            .tiles = tiles_,
                            .places = reinterpret_cast<const gpu::BlockPlace*>(places_.address()),
                            .results = reinterpret_cast<gpu::ApplyResult*>(apply_results_.address())});
  }));
  FRESHET_ASSIGN(const auto packed, read<gpu::PackResult>(pack_results_));
  FRESHET_ASSIGN(const auto results, read<gpu::ApplyResult>(apply_results_));
  for (std::uint64_t i = 0; i < results.size(); ++i) {
    const bool is_proved = results[i].error == 0 && results[i].changed == packed[i].changed &&
                           results[i].sum_low == packed[i].sum_low && results[i].sum_high == packed[i].sum_high;
    if (!is_proved) return fail(Code::corrupt, format("tensor {}: apply gave the error {}", i, results[i].error));
  }
  FRESHET_TRY(model_.check_new(model_.fresh()));
  return ms;
}

}  // namespace freshet::benchmarks
