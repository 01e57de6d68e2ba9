// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Elements and sums of element deltas, as core/FORMAT.md defines them, for the kernels that write and read them. A
/// word of any width stands in the low bits of 64.

#include "core/gpu/kernels/delta_kernels.h"
#include "core/gpu/kernels/words.h"

namespace freshet::gpu {

inline constexpr std::uint32_t kGapEscapeByte = 255;
inline constexpr std::uint32_t kBlockHeadSize = 12;
inline constexpr std::uint32_t kPlaneHeadSize = 5;

FRESHET_DEVICE std::uint64_t load_element(const std::uint8_t* from, std::uint32_t width) {
  if (!is_aligned(from, width)) return load_bytes(from, width);
  switch (width) {
    case 1: return *from;
    case 2: return load<std::uint16_t>(from);
    case 4: return load<std::uint32_t>(from);
    default: return load<std::uint64_t>(from);
  }
}

FRESHET_DEVICE void store_element(std::uint8_t* to, std::uint32_t width, std::uint64_t bits) {
  if (!is_aligned(to, width)) {
    for (std::uint32_t i = 0; i < width; ++i) to[i] = static_cast<std::uint8_t>(bits >> (8 * i));
    return;
  }
  switch (width) {
    case 1: *to = static_cast<std::uint8_t>(bits); break;
    case 2: store(to, static_cast<std::uint16_t>(bits)); break;
    case 4: store(to, static_cast<std::uint32_t>(bits)); break;
    default: store(to, bits);
  }
}

/// The arithmetic of differences in one width.
class ElementWords {
 public:
  FRESHET_DEVICE explicit ElementWords(const DeltaElements& elements)
      : shift_(64 - 8 * elements.width), is_ordered_(elements.is_ordered != 0) {}

  FRESHET_DEVICE std::uint64_t difference(std::uint64_t old_bits, std::uint64_t new_bits) const {
    const std::uint64_t up = (rank_of(new_bits) - rank_of(old_bits)) << shift_;
    return cut((up << 1 >> shift_) ^ (0 - (up >> 63)));
  }

  FRESHET_DEVICE std::uint64_t changed(std::uint64_t old_bits, std::uint64_t difference) const {
    const std::uint64_t step = (difference >> 1) ^ (0 - (difference & 1));
    return bits_of(cut(rank_of(old_bits) + step));
  }

 private:
  FRESHET_DEVICE std::uint64_t cut(std::uint64_t word) const { return word << shift_ >> shift_; }
  FRESHET_DEVICE std::uint64_t sign() const { return std::uint64_t{1} << (63 - shift_); }
  /// A float's bits as an integer that grows with its value.
  FRESHET_DEVICE std::uint64_t rank_of(std::uint64_t bits) const {
    if (!is_ordered_) return bits;
    return (bits & sign()) != 0 ? cut(~bits) : bits | sign();
  }
  FRESHET_DEVICE std::uint64_t bits_of(std::uint64_t rank) const {
    if (!is_ordered_) return rank;
    return (rank & sign()) != 0 ? rank ^ sign() : cut(~rank);
  }

  std::uint32_t shift_;
  bool is_ordered_;
};

struct LaneSums {
  std::uint64_t low, high;
};

FRESHET_DEVICE std::uint64_t mix_to_low(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}
FRESHET_DEVICE std::uint64_t mix_to_high(std::uint64_t x) {
  x = (x ^ (x >> 33)) * 0xFF51AFD7ED558CCD;
  x = (x ^ (x >> 33)) * 0xC4CEB9FE1A85EC53;
  return x ^ (x >> 33);
}
FRESHET_DEVICE void add_change(LaneSums& to, const DeltaElements& elements, std::uint64_t index, std::uint64_t old_bits,
                               std::uint64_t new_bits) {
  const std::uint64_t low = index * 0x9E3779B97F4A7C15 + elements.key_low;
  const std::uint64_t high = index * 0xD1B54A32D192ED03 + elements.key_high;
  to.low += mix_to_low(low ^ new_bits) - mix_to_low(low ^ old_bits);
  to.high += mix_to_high(high ^ new_bits) - mix_to_high(high ^ old_bits);
}

/// Room for the words of a block of threads with each other.
struct BlockRoom {
  std::uint64_t of_warps[2][kDeltaThreadsMax / 32];
};

struct Prefix {
  std::uint64_t before;  ///< Sum of the threads before this one.
  std::uint64_t all;
};

/// All threads of the block call it. Two calls need a barrier between them.
FRESHET_DEVICE Prefix prefix_of_block(BlockRoom& room, std::uint64_t value) {
  const std::uint64_t up_to_lane = sum_up_to_lane(value);
  if (lane() == 31) room.of_warps[0][warp()] = up_to_lane;
  sync_block();
  Prefix prefix{up_to_lane - value, 0};
  for (std::uint32_t i = 0; i < warps(); ++i) {
    if (i < warp()) prefix.before += room.of_warps[0][i];
    prefix.all += room.of_warps[0][i];
  }
  return prefix;
}

/// Adds the sums of all threads to two words of memory. All threads of the block call it; two calls, or one behind
/// prefix_of_block(), need a barrier between them.
FRESHET_DEVICE void add_sums_of_block(BlockRoom& room, const LaneSums& sums, std::uint64_t* low, std::uint64_t* high) {
  const std::uint64_t low_of_warp = sum_of_warp(sums.low);
  const std::uint64_t high_of_warp = sum_of_warp(sums.high);
  if (lane() == 0) {
    room.of_warps[0][warp()] = low_of_warp;
    room.of_warps[1][warp()] = high_of_warp;
  }
  sync_block();
  if (thread() > 1) return;
  std::uint64_t sum = 0;
  for (std::uint32_t i = 0; i < warps(); ++i) sum += room.of_warps[thread()][i];
  atomic_add(thread() == 0 ? low : high, sum);
}

}  // namespace freshet::gpu
