// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "core/vector/copy.h"

namespace freshet {
namespace {

constexpr VectorLevel kVectorLevels[] = {VectorLevel::portable, VectorLevel::avx2, VectorLevel::avx512};

std::vector<std::byte> bytes_of_seed(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

/// Copies between the given alignments and looks at the bytes written, those around them, and the digest.
void check_copy(VectorLevel level, std::size_t to_shift, std::size_t from_shift, std::size_t bytes) {
  SCOPED_TRACE(testing::Message() << name_of(level) << ", " << bytes << " bytes from +" << from_shift << " to +"
                                  << to_shift);
  static const std::vector<std::byte> source = bytes_of_seed(40000, 11);
  alignas(64) static std::byte target[40000];
  std::memset(target, 0xEE, sizeof(target));
  const Bytes from(source.data() + from_shift, bytes);
  const Digest digest = copy_and_digest(MutableBytes(target + 64 + to_shift, bytes), from, level);
  ASSERT_EQ(std::memcmp(target + 64 + to_shift, from.data(), bytes), 0);
  ASSERT_EQ(digest, digest_of(from));
  // The same in two pieces.
  std::memset(target, 0xEE, sizeof(target));
  const std::size_t cut = bytes * 3 / 7;
  DigestStream stream;
  copy_and_digest(MutableBytes(target + 64 + to_shift, cut), from.first(cut), stream, level);
  copy_and_digest(MutableBytes(target + 64 + to_shift + cut, bytes - cut), from.subspan(cut), stream, level);
  ASSERT_EQ(std::memcmp(target + 64 + to_shift, from.data(), bytes), 0);
  ASSERT_EQ(stream.finish(), digest_of(from));
  for (std::size_t i = 0; i < 64 + to_shift; ++i) ASSERT_EQ(target[i], std::byte{0xEE});
  for (std::size_t i = 64 + to_shift + bytes; i < 64 + to_shift + bytes + 600; ++i) {
    ASSERT_EQ(target[i], std::byte{0xEE});
  }
}

TEST(CopyAndDigest, LevelsAgreeOnAlignmentsAndTails) {
  for (const VectorLevel level : kVectorLevels) {
    if (!is_supported(level)) {
      std::printf("not run, the processor lacks it: %s\n", std::string(name_of(level)).c_str());
      continue;
    }
    for (std::size_t bytes = 0; bytes <= 600; ++bytes) check_copy(level, 0, bytes % 64, bytes);
    for (std::size_t shift = 0; shift < 64; ++shift) {
      for (const std::size_t bytes : {1, 63, 64, 127, 128, 255, 256, 257, 511, 4095, 4096, 4097, 9000}) {
        check_copy(level, shift, 0, bytes);
        check_copy(level, 0, shift, bytes);
        check_copy(level, shift, 63 - shift, bytes);
      }
    }
    for (std::size_t bytes = 4096 * 3 - 70; bytes <= 4096 * 3 + 300; ++bytes) check_copy(level, 0, 5, bytes);
  }
}

TEST(VectorLevel, NamesAreFoundAgain) {
  for (const VectorLevel level : kVectorLevels) EXPECT_EQ(vector_level_named(name_of(level)), level);
  EXPECT_EQ(vector_level_named("sse"), std::nullopt);
  EXPECT_TRUE(is_supported(VectorLevel::portable));
  EXPECT_TRUE(is_supported(vector_level()));
}

}  // namespace
}  // namespace freshet
