// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include "core/base/check.h"
#include "core/delta/element_delta.h"
#include "core/delta/kernels.h"

namespace freshet {
namespace {

constexpr std::size_t kPageBytes = 4096;
/// What is read in one place where little is read: more places say more.
constexpr std::size_t kShortSampleBytes = 256;
constexpr std::size_t kSampledPagesMin = 4;

}  // namespace

std::uint64_t count_changed_elements(DType dtype, Bytes base, Bytes target) {
  const std::size_t width = word_bytes_of(dtype);
  FRESHET_CHECK(base.size() == target.size() && base.size() % width == 0);
  const delta::Kernels& kernels = delta::kernels_of(dtype, vector_level());
  std::array<std::uint32_t, kPageBytes + delta::kPlacesSlack> places;
  std::uint64_t changed = 0;
  for (std::size_t at = 0; at < base.size(); at += kPageBytes) {
    const std::size_t bytes = std::min(kPageBytes, base.size() - at);
    changed += kernels.find(base.data() + at, target.data() + at, bytes / width, 0, places.data());
  }
  return changed;
}

std::uint64_t estimate_changed_elements(DType dtype, Bytes base, Bytes target, std::uint64_t bytes_read_max) {
  const std::size_t cell = bytes_read_max < kSampledPagesMin * kPageBytes ? kShortSampleBytes : kPageBytes;
  const std::uint64_t cells = base.size() / cell;
  const std::uint64_t sampled = std::max<std::uint64_t>(1, bytes_read_max / cell);
  if (cells <= sampled) return count_changed_elements(dtype, base, target);
  std::uint64_t changed = 0;
  for (std::uint64_t i = 0; i < sampled; ++i) {
    // Cell (i + 1/2) / sampled of the way. No product overflows: cells and samples are far below 2^32 of each.
    const std::uint64_t at = static_cast<std::uint64_t>((static_cast<double>(i) + 0.5) *
                                                        (static_cast<double>(cells) / static_cast<double>(sampled)));
    changed += count_changed_elements(dtype, base.subspan(at * cell, cell), target.subspan(at * cell, cell));
  }
  const double scale = static_cast<double>(base.size()) / static_cast<double>(sampled * cell);
  return static_cast<std::uint64_t>(static_cast<double>(changed) * scale + 0.5);
}

}  // namespace freshet
