// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "transport/channel/channel.h"

namespace freshet::channel {
namespace {

SegmentName name(std::uint64_t sequence, std::uint32_t tensor) {
  return {.writer = {.run = {.high = 1, .low = 2}, .incarnation = 3, .sequence = sequence}, .tensor = tensor};
}

FetchRequest request() {
  return {.request = 1,
          .session = 2,
          .lease = 3,
          .version = 4,
          .link_bytes_per_second = 5,
          .pieces = {{.tensor = 6, .offset = 7, .bytes = 8},
                     {.tensor = 9, .bytes = 10, .base = name(11, 9)},
                     {.tensor = 12},
                     {.tensor = 13, .bytes = 14, .base = name(15, 13)}}};
}

TEST(FetchRequest, EveryFieldComesThrough) {
  const auto decoded = decode_fetch(encode(request()));
  ASSERT_TRUE(decoded) << decoded.error().message();
  EXPECT_EQ(decoded->request, 1u);
  EXPECT_EQ(decoded->session, 2u);
  EXPECT_EQ(decoded->lease, 3u);
  EXPECT_EQ(decoded->version, 4u);
  EXPECT_EQ(decoded->link_bytes_per_second, 5u);
  ASSERT_EQ(decoded->pieces.size(), 4u);
  EXPECT_EQ(decoded->pieces[0].tensor, 6u);
  EXPECT_EQ(decoded->pieces[0].offset, 7u);
  EXPECT_EQ(decoded->pieces[0].bytes, 8u);
  EXPECT_FALSE(decoded->pieces[0].base);
  EXPECT_EQ(decoded->pieces[1].base, name(11, 9));
  EXPECT_FALSE(decoded->pieces[2].base);
  EXPECT_EQ(decoded->pieces[3].base, name(15, 13));
}

TEST(FetchRequest, WhatIsDamagedIsCorruptOrAnotherRequest) {
  const auto whole = encode(request());
  for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) {
    const auto cut = decode_fetch(Bytes(whole).first(bytes));
    EXPECT_TRUE(!cut || cut->pieces.size() <= 4) << bytes;
  }
  for (std::size_t bit = 0; bit < whole.size() * 8; ++bit) {
    auto damaged = whole;
    damaged[bit / 8] ^= std::byte(1u << bit % 8);
    const auto decoded = decode_fetch(damaged);
    if (decoded) continue;
    EXPECT_EQ(decoded.error().code(), Code::corrupt) << bit;
  }
}

TEST(FetchRequest, PiecesHaveALimit) {
  EXPECT_FALSE(decode_fetch(encode(FetchRequest{.request = 1})));
  FetchRequest many{.request = 1, .pieces = std::vector<Piece>(kPiecesMax)};
  EXPECT_TRUE(decode_fetch(encode(many)));
  many.pieces.emplace_back();
  EXPECT_FALSE(decode_fetch(encode(many)));
}

}  // namespace
}  // namespace freshet::channel
