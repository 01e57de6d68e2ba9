// SPDX-License-Identifier: Apache-2.0
#include "repo/levels/restart/readable.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "repo/levels/shards/shard.h"

namespace freshet::levels {
namespace {

/// A file whose bytes are `stored`, on a medium that cannot read some blocks of it.
class FailingMedium {
 public:
  static constexpr std::uint64_t kBlockBytes = 4096;

  Status read(std::uint64_t at, MutableBytes out) {
    ++reads;
    const std::uint64_t end = at + out.size();
    for (const std::uint64_t block : bad) {
      if (block * kBlockBytes >= end || (block + 1) * kBlockBytes <= at) continue;
      ++failed;
      return fail(code, "the block cannot be read");
    }
    std::ranges::fill(out, stored);
    return {};
  }
  Status readable(std::uint64_t at, MutableBytes out) {
    return read_readable(at, out, [&](std::uint64_t from, MutableBytes part) { return read(from, part); });
  }

  static constexpr std::byte stored{7};
  std::vector<std::uint64_t> bad;
  Code code = Code::io_error;
  std::size_t reads = 0;
  std::size_t failed = 0;
};

TEST(Readable, TwoBadBlocksCostThemselves) {
  constexpr std::uint64_t kBlock = FailingMedium::kBlockBytes;
  FailingMedium medium;
  const std::uint64_t at = 3 * kReadBytes;
  const std::vector<std::uint64_t> bad = {5 * kChunkBytes / kBlock + 3, 9 * kChunkBytes / kBlock};
  for (const std::uint64_t block : bad) medium.bad.push_back(at / kBlock + block);
  std::vector<std::byte> out(kReadBytes, std::byte{1});
  ASSERT_TRUE(medium.readable(at, out));
  for (std::uint64_t i = 0; i < out.size(); ++i) {
    const bool is_bad = i / kBlock == bad[0] || i / kBlock == bad[1];
    ASSERT_EQ(out[i], is_bad ? std::byte{0} : FailingMedium::stored) << i;
  }
  EXPECT_EQ(medium.failed, 11U);

  // A third one costs its chunk, and no more.
  medium.bad.push_back(at / kBlock + 12 * kChunkBytes / kBlock + 7);
  ASSERT_TRUE(medium.readable(at, out));
  EXPECT_EQ(out[12 * kChunkBytes - 1], FailingMedium::stored);
  EXPECT_EQ(out[12 * kChunkBytes], std::byte{0});
  EXPECT_EQ(out[13 * kChunkBytes], FailingMedium::stored);
}

TEST(Readable, ADeadMegabyteIsReadFewTimes) {
  FailingMedium medium;
  for (std::uint64_t block = 0; block < kReadBytes / FailingMedium::kBlockBytes; ++block) medium.bad.push_back(block);
  std::vector<std::byte> out(kReadBytes, std::byte{1});
  ASSERT_TRUE(medium.readable(0, out));
  EXPECT_TRUE(std::ranges::all_of(out, [](std::byte byte) { return byte == std::byte{0}; }));
  EXPECT_EQ(medium.failed, 33U) << "each may take seconds";
}

TEST(Readable, WhatIsNoDamageIsTold) {
  FailingMedium medium;
  medium.bad = {0};
  std::vector<std::byte> out(kReadBytes, std::byte{1});
  for (const Code code : {Code::out_of_space, Code::unavailable, Code::timed_out, Code::cancelled}) {
    medium.code = code;
    medium.reads = 0;
    const Status read = medium.readable(0, out);
    ASSERT_FALSE(read);
    EXPECT_EQ(read.error().code(), code);
    EXPECT_EQ(medium.reads, 1U);
    EXPECT_EQ(out[0], std::byte{1}) << "no byte counts as lost";
  }
}

}  // namespace
}  // namespace freshet::levels
