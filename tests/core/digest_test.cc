// SPDX-License-Identifier: Apache-2.0
#include "core/base/digest.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace freshet {
namespace {

std::vector<std::byte> random_bytes(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// The oracle is the library's scalar-or-baseline code compiled here, without the dispatch that Freshet calls.
Digest baseline(Bytes bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {.low = hash.low64, .high = hash.high64};
}

TEST(Digest, IsXxh3OnEveryProcessor) {
  for (const std::size_t count : {0, 1, 3, 16, 17, 128, 129, 240, 241, 1024, 4097, 1 << 20}) {
    const std::vector<std::byte> bytes = random_bytes(count, count + 1);
    EXPECT_EQ(digest_of(bytes), baseline(bytes)) << count;
  }
}

TEST(Digest, OfPiecesEqualsTheWhole) {
  const std::vector<std::byte> bytes = random_bytes(300'000, 7);
  std::mt19937_64 random(8);
  DigestStream stream;
  for (int round = 0; round < 20; ++round) {
    stream.reset();
    std::size_t at = 0;
    while (at < bytes.size()) {
      const std::size_t piece = std::min<std::size_t>(bytes.size() - at, random() % 70'000);
      stream.update(Bytes(bytes).subspan(at, piece));
      at += piece;
    }
    EXPECT_EQ(stream.finish(), digest_of(bytes));
  }
}

TEST(Digest, HexIsHighHalfFirst) { EXPECT_EQ(to_hex({.low = 0xab, .high = 0x1}), "000000000000000100000000000000ab"); }

}  // namespace
}  // namespace freshet
