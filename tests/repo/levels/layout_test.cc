// SPDX-License-Identifier: Apache-2.0
#include "core/layout/layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <random>

#include "tests/support/from_environment.h"
#include "tests/support/refused.h"

namespace freshet {
namespace {

LaidTensor laid(std::string name, Shape shape, Layout layout, DType dtype = DType::f32) {
  return {.spec = {.name = std::move(name), .dtype = dtype, .shape = std::move(shape)}, .layout = layout};
}

/// Which of a tensor's bytes a piece has, one by one.
std::vector<std::uint64_t> bytes_of_piece(const Piece& piece) {
  std::vector<std::uint64_t> bytes;
  for (std::uint64_t run = 0; run < piece.count; ++run) {
    for (std::uint64_t i = 0; i < piece.length; ++i) bytes.push_back(run * piece.stride + piece.begin + i);
  }
  return bytes;
}

/// The definition, element by element: whether rank r of n holds the element at `index` of a tensor.
bool holds(const LaidTensor& tensor, const Shape& index, std::uint32_t n, std::uint32_t r) {
  if (tensor.layout.cut == Cut::on) return tensor.layout.argument % n == r;
  if (tensor.layout.cut == Cut::own) return tensor.layout.argument == r;
  if (tensor.layout.cut == Cut::replicated || tensor.layout.cut == Cut::from) return true;
  const std::uint64_t rows = tensor.spec.shape[tensor.layout.argument];
  const std::uint64_t each = (rows + n - 1) / n;
  return index[tensor.layout.argument] / each == r;
}

std::vector<std::uint64_t> bytes_held(const LaidTensor& tensor, std::uint32_t n, std::uint32_t r) {
  std::vector<std::uint64_t> bytes;
  const std::uint64_t size = word_bytes_of(tensor.spec.dtype);
  const std::uint64_t elements = tensor.spec.bytes() / size;
  for (std::uint64_t e = 0; e < elements; ++e) {
    Shape index(tensor.spec.shape.size());
    std::uint64_t rest = e;
    for (std::size_t axis = index.size(); axis-- > 0;) {
      index[axis] = rest % tensor.spec.shape[axis];
      rest /= tensor.spec.shape[axis];
    }
    if (!holds(tensor, index, n, r)) continue;
    for (std::uint64_t i = 0; i < size; ++i) bytes.push_back(e * size + i);
  }
  return bytes;
}

std::vector<LaidTensor> random_tensors(std::mt19937_64& random) {
  std::vector<LaidTensor> tensors;
  const std::size_t count = 1 + random() % 6;
  for (std::size_t i = 0; i < count; ++i) {
    Shape shape(random() % 4);
    for (std::uint64_t& extent : shape) extent = random() % (random() % 4 == 0 ? 40 : 8);
    Layout layout{.cut = static_cast<Cut>(random() % 5)};
    if (layout.cut == Cut::split && shape.empty()) layout.cut = Cut::replicated;
    if (layout.cut == Cut::split) layout.argument = static_cast<std::uint32_t>(random() % shape.size());
    if (layout.cut == Cut::on || layout.cut == Cut::from) layout.argument = static_cast<std::uint32_t>(random() % 9);
    tensors.push_back(
        laid("t" + std::to_string(i), std::move(shape), layout, random() % 2 == 0 ? DType::f32 : DType::u8));
  }
  return tensors;
}

TEST(Layout, NoRankBeginsInsideAByte) {
  const auto split = [](Shape shape, std::uint32_t axis) {
    return std::vector{laid("w", std::move(shape), {.cut = Cut::split, .argument = axis}, DType::f4)};
  };
  EXPECT_FALSE(check_layouts(split({4, 6}, 1), 2));
  EXPECT_FALSE(check_layouts(split({4, 3}, 0), 2));
  const auto whole = split({5, 6}, 0);
  ASSERT_TRUE(check_layouts(whole, 2));
  EXPECT_EQ(held_piece(whole[0], 0, 2, 1), (Piece{.tensor = 0, .count = 1, .stride = 15, .begin = 9, .length = 6}));
}

TEST(Layout, StoredPiecesCoverEachByteOnceAndHeldOnesAreTheDefinition) {
  const std::uint64_t seed = from_environment("FRESHET_SEED", 7);
  std::cout << "FRESHET_SEED=" << seed << "\n";
  std::mt19937_64 random(seed);
  for (int round = 0; round < 400; ++round) {
    const std::vector<LaidTensor> own = random_tensors(random);
    const auto ranks = static_cast<std::uint32_t>(1 + random() % 6);
    ASSERT_TRUE(check_layouts(own, ranks));
    const std::vector<LaidTensor> whole = whole_tensors(own, ranks);
    std::map<std::uint32_t, std::vector<std::uint64_t>> covered;
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      for (std::uint32_t i = 0; i < whole.size(); ++i) {
        EXPECT_EQ(bytes_of_piece(held_piece(whole[i], i, ranks, rank)), bytes_held(whole[i], ranks, rank));
      }
      for (const StoredPiece& stored : stored_pieces(whole, ranks, rank)) {
        const auto bytes = bytes_of_piece(stored.piece);
        const auto held = bytes_of_piece(held_piece(whole[stored.piece.tensor], stored.piece.tensor, ranks, rank));
        ASSERT_LE(stored.offset_in_held + bytes.size(), held.size());
        EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), held.begin() + static_cast<long>(stored.offset_in_held)));
        auto& all = covered[stored.piece.tensor];
        all.insert(all.end(), bytes.begin(), bytes.end());
      }
    }
    for (std::uint32_t i = 0; i < whole.size(); ++i) {
      auto& all = covered[i];
      std::ranges::sort(all);
      ASSERT_EQ(all.size(), whole[i].spec.bytes()) << whole[i].spec.name << " over " << ranks << " ranks";
      for (std::uint64_t byte = 0; byte < all.size(); ++byte) ASSERT_EQ(all[byte], byte);
    }
  }
}

TEST(Layout, CommonRunsAreTheBytesThatBothHave) {
  std::mt19937_64 random(from_environment("FRESHET_SEED", 11));
  for (int round = 0; round < 2000; ++round) {
    const std::uint64_t total = 24 * (1 + random() % 4);
    const auto piece = [&] {
      const std::uint64_t counts[] = {1, 2, 3, 4, 6, 8};
      Piece made{.count = counts[random() % 6]};
      made.stride = total / made.count;
      made.begin = random() % made.stride;
      made.length = 1 + random() % (made.stride - made.begin);
      return made;
    };
    const Piece a = piece();
    const Piece b = piece();
    const std::uint64_t first = random() % (a.bytes() + 1);
    const std::uint64_t last = first + random() % (a.bytes() - first + 1);
    const auto in_a = bytes_of_piece(a);
    const auto in_b = bytes_of_piece(b);
    std::vector<std::pair<std::uint64_t, std::uint64_t>> expected;
    for (std::uint64_t i = first; i < last; ++i) {
      const auto at = std::ranges::find(in_b, in_a[i]);
      if (at != in_b.end()) expected.emplace_back(i, static_cast<std::uint64_t>(at - in_b.begin()));
    }
    std::vector<std::pair<std::uint64_t, std::uint64_t>> found;
    for_each_common_run(a, first, last, b, [&](std::uint64_t from, std::uint64_t to, std::uint64_t bytes) {
      for (std::uint64_t i = 0; i < bytes; ++i) found.emplace_back(from + i, to + i);
    });
    ASSERT_EQ(found, expected);
  }
}

TEST(Layout, SharesOfReplicatedTensorsAreEven) {
  std::vector<LaidTensor> tensors;
  std::mt19937_64 random(3);
  std::uint64_t all = 0;
  for (int i = 0; i < 1000; ++i) {
    tensors.push_back(laid("t" + std::to_string(i), {1 + random() % 5000}, {}));
    all += tensors.back().spec.bytes();
  }
  for (const std::uint32_t ranks : {2U, 3U, 8U, 64U}) {
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      std::uint64_t bytes = 0;
      for (const StoredPiece& stored : stored_pieces(tensors, ranks, rank)) bytes += stored.piece.bytes();
      const double even = static_cast<double>(all) / ranks;
      EXPECT_NEAR(static_cast<double>(bytes), even, even / 50);
    }
  }
}

/// Whichever neighbours change, each rank stores as much of them as any other: of large tensors and of small ones.
TEST(Layout, SharesOfNeighboursAreEven) {
  const std::uint64_t seed = from_environment("FRESHET_SEED", 5);
  std::cout << "FRESHET_SEED=" << seed << "\n";
  std::mt19937_64 random(seed);
  for (const std::uint64_t bytes_max : {300ULL, 9'000ULL, 60'000ULL, 3'000'000ULL}) {
    std::vector<LaidTensor> tensors;
    for (int i = 0; i < 2000; ++i) {
      tensors.push_back(laid("t" + std::to_string(i), {1 + random() % bytes_max}, {}, DType::u8));
    }
    for (const std::uint32_t ranks : {2U, 4U, 7U}) {
      const std::size_t first = random() % 1500;
      std::uint64_t all = 0;
      for (std::size_t i = first; i < first + 500; ++i) all += tensors[i].spec.bytes();
      for (std::uint32_t rank = 0; rank < ranks; ++rank) {
        std::uint64_t bytes = 0;
        std::uint32_t before = UINT32_MAX;
        for (const StoredPiece& stored : stored_pieces(tensors, ranks, rank)) {
          EXPECT_NE(stored.piece.tensor, before) << "a rank has one piece of a tensor at most";
          before = stored.piece.tensor;
          if (stored.piece.tensor >= first && stored.piece.tensor < first + 500) bytes += stored.piece.bytes();
        }
        const double even = static_cast<double>(all) / ranks;
        EXPECT_NEAR(static_cast<double>(bytes), even, even / 16) << bytes_max << " over " << ranks;
      }
    }
  }
}

/// As moving statistics, which differ from rank to rank: one rank's are everybody's after a restart.
TEST(Layout, FromIsStoredByOneRankAndHeldByAll) {
  const std::vector<LaidTensor> tensors = {laid("mean", {5}, {.cut = Cut::from, .argument = 4})};
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(held_piece(tensors[0], 0, 3, rank).bytes(), 20U);
    EXPECT_EQ(stored_pieces(tensors, 3, rank).size(), rank == 1 ? 1U : 0U);
  }
}

TEST(Layout, WhatCannotBeIsRefusedByName) {
  const auto refused = [](std::vector<LaidTensor> tensors, std::uint32_t ranks, const char* named) {
    EXPECT_TRUE(is_refused(check_layouts(tensors, ranks), Code::invalid_argument, named));
  };
  refused({laid("w", {3}, {.cut = Cut::split, .argument = 1})}, 2, "w");
  refused({laid("w", {3}, {}), laid("w", {4}, {})}, 2, "w");
  refused({laid("w", {3}, {.cut = Cut::own}), laid("w.r1", {4}, {})}, 2, "w.r1");
  refused({laid("w", {3}, {})}, 0, "0 ranks");
  for (const char* text : {"split", "split:", "split:x", "on:-1", "every", "", "split:99999999999", "from", "from:x"}) {
    EXPECT_FALSE(Layout::parse(text)) << text;
  }
  for (const char* text : {"replicated", "split:2", "on:7", "own", "from:3"}) {
    const auto parsed = Layout::parse(text);
    ASSERT_TRUE(parsed) << text;
    EXPECT_EQ(parsed->text(), text);
  }
}

}  // namespace
}  // namespace freshet
