// SPDX-License-Identifier: Apache-2.0
#pragma once

/// XXH3's constants and the sums of its blocks, for the kernels that form digests.

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
inline constexpr std::uint64_t kPrime32_1 = 0x9E3779B1;
inline constexpr std::uint64_t kPrime32_2 = 0x85EBCA77;
inline constexpr std::uint64_t kPrime32_3 = 0xC2B2AE3D;
inline constexpr std::uint64_t kPrime64_1 = 0x9E3779B185EBCA87;
inline constexpr std::uint64_t kPrime64_2 = 0xC2B2AE3D27D4EB4F;
inline constexpr std::uint64_t kPrime64_3 = 0x165667B19E3779F9;
inline constexpr std::uint64_t kPrime64_4 = 0x85EBCA77C2B2AE63;
inline constexpr std::uint64_t kPrime64_5 = 0x27D4EB2F165667C5;
FRESHET_CONSTANT std::uint64_t kFirstSums[8] = {kPrime32_3, kPrime64_1, kPrime64_2, kPrime64_3,
                                                kPrime64_4, kPrime32_2, kPrime64_5, kPrime32_1};

inline constexpr std::uint32_t kStripeBytes = 64;
inline constexpr std::uint32_t kStripesOfBlock = 16;
inline constexpr std::uint32_t kLastStripeSecret = 121;  // Where the secret of a part's last stripe begins.
inline constexpr std::uint32_t kLowSecret = 11;
inline constexpr std::uint32_t kHighSecret = 117;

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

/// The secret of a lane's words. A lane has one word of every fourth stripe, so that a warp reads 256 bytes at a time.
struct LaneSecret {
  std::uint64_t of_stripes[4];
};
FRESHET_DEVICE LaneSecret lane_secret() {
  LaneSecret secret;
  FRESHET_UNROLL
  for (std::uint32_t i = 0; i < 4; ++i) secret.of_stripes[i] = kSecret[lane() / 8 + 4 * i + lane() % 8];
  return secret;
}

/// The sums of the part's block that begins at `begin`; one warp calls it. `sums` gets kDigestSumsOfBlock of them.
/// REQUIRES: the part has more than kDigestHostBytesMax bytes, and more than `begin`.
FRESHET_DEVICE void sum_digest_block(const std::uint8_t* part, std::uint64_t length, std::uint64_t begin,
                                     const LaneSecret& secret, std::uint64_t* sums) {
  const std::uint32_t word = lane() % 8;
  const std::uint32_t first_stripe = lane() / 8;
  const std::uint8_t* const bytes = part + begin;
  const std::uint64_t left = length - begin;
  Addends addends{0, 0};
  // A block that others follow ends with a stripe of its own; of the last one, the last stripe is read from its end.
  if (left > kDigestBlockBytes) {
    std::uint64_t data[4];
    FRESHET_UNROLL
    for (std::uint32_t i = 0; i < 4; ++i) data[i] = load_word(bytes + (first_stripe + 4 * i) * kStripeBytes + 8 * word);
    FRESHET_UNROLL
    for (std::uint32_t i = 0; i < 4; ++i) add_word(addends, data[i], secret.of_stripes[i]);
  } else {
    const std::uint32_t stripes = static_cast<std::uint32_t>((left - 1) / kStripeBytes);
    FRESHET_UNROLL
    for (std::uint32_t i = 0; i < 4; ++i) {
      const std::uint32_t stripe = first_stripe + 4 * i;
      if (stripe < stripes) {
        add_word(addends, load_word(bytes + stripe * kStripeBytes + 8 * word), secret.of_stripes[i]);
      }
    }
    if (first_stripe == 0) {
      add_word(addends, load_word(part + length - kStripeBytes + 8 * word), secret_at(kLastStripeSecret + 8 * word));
    }
  }
  std::uint64_t sum = addends.own + from_lane(addends.neighbours, lane() ^ 1);
  sum += from_lane(sum, lane() ^ 8);
  sum += from_lane(sum, lane() ^ 16);
  if (lane() < kDigestSumsOfBlock) sums[word] = sum;
}

}  // namespace freshet::gpu
