// SPDX-License-Identifier: Apache-2.0
#include "core/gpu/kernels/digest_blocks.h"
#include "core/gpu/kernels/digest_kernels.h"
#include "core/gpu/kernels/words.h"

namespace freshet::gpu {

FRESHET_KERNEL(digest_sums, kDigestThreadsMax, 4, DigestSumsArguments) {
  const LaneSecret secret = lane_secret();
  const TileRange range = tiles_of_block(arguments.tiles);
  if (range.begin + warp() >= range.end) return;
  std::uint64_t row = row_of(arguments.parts, arguments.part_count, range.begin + warp());
  for (std::uint64_t tile = range.begin + warp(); tile < range.end; tile += warps()) {
    while (row + 1 < arguments.part_count && arguments.parts[row + 1].first_tile <= tile) ++row;
    const DigestPart part = arguments.parts[row];
    const std::uint64_t begin = (tile - part.first_tile) * kDigestBlockBytes;
    if (part.length <= kDigestHostBytesMax || begin >= part.length) continue;  // A table that lies.
    sum_digest_block(part.bytes, part.length, begin, secret, arguments.sums + tile * kDigestSumsOfBlock);
  }
}

FRESHET_DEVICE std::uint64_t scrambled(std::uint64_t sum, std::uint64_t secret) {
  return (sum ^ (sum >> 47) ^ secret) * kPrime32_1;
}

/// The end of XXH3: eight lanes' sums become one number, which all of them return.
FRESHET_DEVICE std::uint64_t merged(std::uint64_t sum, std::uint64_t start, std::uint32_t secret) {
  const std::uint32_t word = lane() % 8;
  const std::uint64_t own = sum ^ secret_at(secret + 8 * word);
  const std::uint64_t other = from_lane(own, lane() ^ 1);
  std::uint64_t folded = (own * other) ^ multiply_high(own, other);
  folded += from_lane(folded, lane() ^ 2);
  folded += from_lane(folded, lane() ^ 4);
  std::uint64_t result = start + folded;
  result = (result ^ (result >> 37)) * 0x165667919E3779F9;
  return result ^ (result >> 32);
}

/// Eight lanes go along a part's sums. A warp's four parts may have different lengths.
FRESHET_KERNEL(digest_chain, kDigestThreadsMax, 1, DigestChainArguments) {
  constexpr std::uint32_t kAhead = 8;  // So many sums are under way while one is scrambled.
  const std::uint32_t word = lane() % 8;
  const std::uint64_t at_once = static_cast<std::uint64_t>(blocks()) * threads() / 8;
  const std::uint64_t first = static_cast<std::uint64_t>(block()) * (threads() / 8) + thread() / 8;
  const std::uint64_t scramble_secret = kSecret[16 + word];
  // All lanes of a warp go on while one of them has a part.
  for (std::uint64_t index = first; index - lane() / 8 < arguments.part_count; index += at_once) {
    const bool has_part = index < arguments.part_count && arguments.parts[index].length > kDigestHostBytesMax;
    std::uint64_t length = 0;
    std::uint64_t sum = kFirstSums[word];
    if (has_part) {
      const DigestPart part = arguments.parts[index];
      length = part.length;
      const std::uint64_t others = (length - 1) / kDigestBlockBytes;  // All but the last.
      const std::uint64_t* const sums = arguments.sums + part.first_tile * kDigestSumsOfBlock + word;
      std::uint64_t at = 0;
      for (; at + kAhead <= others; at += kAhead) {
        std::uint64_t next[kAhead];
        FRESHET_UNROLL
        for (std::uint32_t i = 0; i < kAhead; ++i) next[i] = sums[(at + i) * kDigestSumsOfBlock];
        FRESHET_UNROLL
        for (std::uint32_t i = 0; i < kAhead; ++i) sum = scrambled(sum + next[i], scramble_secret);
      }
      for (; at < others; ++at) sum = scrambled(sum + sums[at * kDigestSumsOfBlock], scramble_secret);
      sum += sums[others * kDigestSumsOfBlock];
    }
    const std::uint64_t low = merged(sum, length * kPrime64_1, kLowSecret);
    const std::uint64_t high = merged(sum, ~(length * kPrime64_2), kHighSecret);
    if (has_part && word == 0) {
      arguments.digests[2 * index] = low;
      arguments.digests[2 * index + 1] = high;
    }
  }
}

}  // namespace freshet::gpu
