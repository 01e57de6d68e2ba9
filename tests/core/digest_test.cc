// SPDX-License-Identifier: Apache-2.0
#include "core/base/digest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "core/vector/copy.h"

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

/// Words, since there are many.
std::vector<std::byte> many_random_bytes(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(count + sizeof(std::uint64_t));
  for (std::size_t at = 0; at < count; at += sizeof(std::uint64_t)) {
    const std::uint64_t word = random();
    std::memcpy(bytes.data() + at, &word, sizeof word);
  }
  bytes.resize(count);
  return bytes;
}

/// By the prose in core/FORMAT.md.
Digest by_parts(Bytes bytes) {
  std::vector<unsigned char> digests;
  for (std::size_t at = 0; at < bytes.size(); at += 67'108'864) {
    const Digest part = baseline(bytes.subspan(at, std::min<std::size_t>(bytes.size() - at, 67'108'864)));
    for (const std::uint64_t half : {part.low, part.high}) {
      for (int shift = 0; shift < 64; shift += 8) digests.push_back(static_cast<unsigned char>(half >> shift));
    }
  }
  return baseline(std::as_bytes(std::span(digests)));
}

TEST(Digest, OfMoreThanAPartIsThatOfThePartsDigests) {
  const std::size_t part = 67'108'864;
  const std::vector<std::byte> bytes = many_random_bytes(2 * part + 1, 9);
  EXPECT_EQ(digest_of({}), baseline({}));
  const Bytes all(bytes);
  EXPECT_EQ(digest_of(all.first(part - 1)), baseline(all.first(part - 1)));
  EXPECT_EQ(digest_of(all.first(part)), baseline(all.first(part))) << "one part is no list of parts";
  for (const std::size_t count : {part + 1, 2 * part, 2 * part + 1}) {
    const Digest expected = by_parts(all.first(count));
    EXPECT_EQ(digest_of(all.first(count)), expected) << count;
    EXPECT_NE(plain_xxh3_of(all.first(count)), expected) << count;
  }
  EXPECT_EQ(plain_xxh3_of(all), baseline(all));
}

TEST(Digest, OfPiecesEqualsTheWholeWhereverThePartsEnd) {
  const std::size_t part = 67'108'864;
  const std::vector<std::byte> bytes = many_random_bytes(2 * part + 1, 10);
  std::mt19937_64 random(11);
  DigestStream stream;
  PlainXxh3Stream plain;
  std::vector<std::byte> copy(bytes.size());
  for (const std::size_t count : {std::size_t{0}, part, part + 1, 2 * part, 2 * part + 1}) {
    for (const std::size_t piece_max : {std::size_t{3} << 20, part, 2 * part + 1}) {
      stream.reset();
      plain.reset();
      for (std::size_t at = 0; at < count;) {
        const std::size_t piece = std::min(count - at, piece_max == part ? part : random() % piece_max + 1);
        stream.update(Bytes(bytes).subspan(at, piece));
        plain.update(Bytes(bytes).subspan(at, piece));
        at += piece;
      }
      EXPECT_EQ(stream.finish(), digest_of(Bytes(bytes).first(count))) << count;
      EXPECT_EQ(stream.finish(), digest_of(Bytes(bytes).first(count))) << "asked twice";
      EXPECT_EQ(plain.finish(), baseline(Bytes(bytes).first(count))) << count;
    }
    const MutableBytes to = MutableBytes(copy).first(count);
    EXPECT_EQ(copy_and_digest(to, Bytes(bytes).first(count)), digest_of(Bytes(bytes).first(count))) << count;
  }
}

TEST(Digest, HexIsHighHalfFirst) { EXPECT_EQ(to_hex({.low = 0xab, .high = 0x1}), "000000000000000100000000000000ab"); }

}  // namespace
}  // namespace freshet
