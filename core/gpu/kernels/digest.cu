// SPDX-License-Identifier: Apache-2.0
#include "core/gpu/kernels/digest_kernels.h"
#include "core/gpu/kernels/words.h"

namespace freshet::gpu {

// The constants of XXH3 (Collet, the xxHash specification): its default secret as little-endian words, and its primes.
FRESHET_CONSTANT std::uint64_t kSecret[24] = {
    0xBE4BA423396CFEB8, 0x1CAD21F72C81017C, 0xDB979083E96DD4DE, 0x1F67B3B7A4A44072, 0x78E5C0CC4EE679CB,
    0x2172FFCC7DD05A82, 0x8E2443F7744608B8, 0x4C263A81E69035E0, 0xCB00C391BB52283C, 0xA32E531B8B65D088,
    0x4EF90DA297486471, 0xD8ACDEA946EF1938, 0x3F349CE33F76FAA8, 0x1D4F0BC7C7BBDCF9, 0x3159B4CD4BE0518A,
    0x647378D9C97E9FC8, 0xC3EBD33483ACC5EA, 0xEB6313FAFFA081C5, 0x49DAF0B751DD0D17, 0x9E68D429265516D3,
    0xFCA1477D58BE162B, 0xCE31D07AD1B8F88F, 0x280416958F3ACB45, 0x7E404BBBCAFBD7AF};
constexpr std::uint64_t kPrime32_1 = 0x9E3779B1;
constexpr std::uint64_t kPrime32_2 = 0x85EBCA77;
constexpr std::uint64_t kPrime32_3 = 0xC2B2AE3D;
constexpr std::uint64_t kPrime64_1 = 0x9E3779B185EBCA87;
constexpr std::uint64_t kPrime64_2 = 0xC2B2AE3D27D4EB4F;
constexpr std::uint64_t kPrime64_3 = 0x165667B19E3779F9;
constexpr std::uint64_t kPrime64_4 = 0x85EBCA77C2B2AE63;
constexpr std::uint64_t kPrime64_5 = 0x27D4EB2F165667C5;
FRESHET_CONSTANT std::uint64_t kFirstSums[8] = {kPrime32_3, kPrime64_1, kPrime64_2, kPrime64_3,
                                                kPrime64_4, kPrime32_2, kPrime64_5, kPrime32_1};

constexpr std::uint32_t kStripeBytes = 64;
constexpr std::uint32_t kStripesOfBlock = 16;
constexpr std::uint32_t kLastStripeSecret = 121;  // Where the secret of a part's last stripe begins.
constexpr std::uint32_t kLowSecret = 11;
constexpr std::uint32_t kHighSecret = 117;

/// Eight bytes of the secret, from any of its bytes on that is no multiple of eight.
FRESHET_DEVICE std::uint64_t secret_at(std::uint32_t byte) {
  const std::uint32_t shift = 8 * (byte % 8);
  return (kSecret[byte / 8] >> shift) | (kSecret[byte / 8 + 1] << (64 - shift));
}

/// What word `word` of a stripe adds to its own sum, and to that of its neighbour.
struct Addends {
  std::uint64_t own, neighbours;
};
FRESHET_DEVICE void add_word(Addends& to, std::uint64_t data, std::uint64_t secret) {
  const std::uint64_t keyed = data ^ secret;
  to.own += (keyed & 0xFFFFFFFF) * (keyed >> 32);
  to.neighbours += data;
}

FRESHET_DEVICE std::uint64_t load_word(const std::uint8_t* from) {
  if (is_aligned(from, 8)) return load<std::uint64_t>(from);
  if (is_aligned(from, 4)) {
    return load<std::uint32_t>(from) | static_cast<std::uint64_t>(load<std::uint32_t>(from + 4)) << 32;
  }
  return load_bytes(from, 8);
}

/// A lane has one word of every fourth stripe, so that a warp reads 256 bytes at a time.
FRESHET_KERNEL(digest_sums, kDigestThreadsMax, 4, DigestSumsArguments) {
  const std::uint32_t word = lane() % 8;
  const std::uint32_t first_stripe = lane() / 8;
  std::uint64_t secret[4];
  FRESHET_UNROLL
  for (std::uint32_t i = 0; i < 4; ++i) secret[i] = kSecret[first_stripe + 4 * i + word];

  const TileRange range = tiles_of_block(arguments.tiles);
  if (range.begin + warp() >= range.end) return;
  std::uint64_t row = row_of(arguments.parts, arguments.part_count, range.begin + warp());
  for (std::uint64_t tile = range.begin + warp(); tile < range.end; tile += warps()) {
    while (row + 1 < arguments.part_count && arguments.parts[row + 1].first_tile <= tile) ++row;
    const DigestPart part = arguments.parts[row];
    const std::uint64_t begin = (tile - part.first_tile) * kDigestBlockBytes;
    if (part.length <= kDigestHostBytesMax || begin >= part.length) continue;  // A table that lies.
    const std::uint8_t* const bytes = part.bytes + begin;
    const std::uint64_t left = part.length - begin;
    Addends sums{0, 0};
    // A block that others follow ends with a stripe of its own; of the last one, the last stripe is read from its end.
    if (left > kDigestBlockBytes) {
      std::uint64_t data[4];
      FRESHET_UNROLL
      for (std::uint32_t i = 0; i < 4; ++i)
        data[i] = load_word(bytes + (first_stripe + 4 * i) * kStripeBytes + 8 * word);
      FRESHET_UNROLL
      for (std::uint32_t i = 0; i < 4; ++i) add_word(sums, data[i], secret[i]);
    } else {
      const std::uint32_t stripes = static_cast<std::uint32_t>((left - 1) / kStripeBytes);
      for (std::uint32_t i = 0; i < 4; ++i) {
        const std::uint32_t stripe = first_stripe + 4 * i;
        if (stripe < stripes) add_word(sums, load_word(bytes + stripe * kStripeBytes + 8 * word), secret[i]);
      }
      if (first_stripe == 0) {
        add_word(sums, load_word(part.bytes + part.length - kStripeBytes + 8 * word),
                 secret_at(kLastStripeSecret + 8 * word));
      }
    }
    std::uint64_t sum = sums.own + from_lane(sums.neighbours, lane() ^ 1);
    sum += from_lane(sum, lane() ^ 8);
    sum += from_lane(sum, lane() ^ 16);
    if (lane() < 8) arguments.sums[tile * kDigestSumsOfBlock + word] = sum;
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
