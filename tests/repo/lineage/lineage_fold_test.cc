// SPDX-License-Identifier: Apache-2.0
#include "repo/lineage/lineage_fold.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>

namespace freshet {
namespace {

using testing::ElementsAre;

LineageRow fold_row(std::uint64_t number, std::uint64_t ancestor) {
  LineageRow row{.version = {"net", number}, .own_bytes = 1};
  if (ancestor != 0) row.ancestor = {"net", ancestor};
  return row;
}

/// The rows of a mark, by their numbers. REQUIRES: row i is net@(i + 1).
std::vector<std::uint64_t> numbers_of(const LineageMark& mark) {
  std::vector<std::uint64_t> numbers;
  for (const std::size_t row : mark.folded) numbers.push_back(row + 1);
  if (numbers.empty()) numbers.push_back(mark.row.version.number);
  return numbers;
}

TEST(LineageFold, AChainIsItsEndsItsBestAndTheRestBetweenThem) {
  std::vector<LineageRow> rows;
  for (std::uint64_t number = 1; number <= 5000; ++number) rows.push_back(fold_row(number, number - 1));
  const std::vector<LineageMark> marks = folded(rows, 2999);
  ASSERT_EQ(marks.size(), 5u);
  EXPECT_THAT(numbers_of(marks[0]), ElementsAre(1));
  EXPECT_EQ(marks[1].folded.size(), 2998u);
  EXPECT_EQ(marks[1].row.version.number, 2999u);
  EXPECT_EQ(marks[1].row.ancestor.number, 1u);
  EXPECT_EQ(marks[1].row.own_bytes, 2998u);
  EXPECT_THAT(numbers_of(marks[2]), ElementsAre(3000));
  EXPECT_EQ(marks[3].folded.size(), 1999u);
  EXPECT_THAT(numbers_of(marks[4]), ElementsAre(5000));
}

TEST(LineageFold, AShortLineageIsDrawnAsItIs) {
  std::vector<LineageRow> rows;
  for (std::uint64_t number = 12; number > 0; --number) rows.push_back(fold_row(number, number - 1));
  const std::vector<LineageMark> marks = folded(rows, LineageMark::kNoRow);
  ASSERT_EQ(marks.size(), 12u);
  for (std::size_t at = 0; at < 12; ++at) EXPECT_EQ(marks[at].row.version, rows[at].version);
}

/// Forests of any shape: each version is in one mark, edges are those of the versions, and the limits hold.
TEST(LineageFold, NoVersionIsLostAndNoEdgeInvented) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const std::uint64_t versions = 1 + random() % 1500;
    const std::uint64_t reach = 1 + random() % (seed % 2 == 0 ? versions : 5);  // Far back: bushes; near: long lines.
    std::vector<LineageRow> rows;
    for (std::uint64_t number = 1; number <= versions; ++number) {
      const bool is_root = random() % 200 == 0;
      rows.push_back(fold_row(number, is_root ? 0 : number - std::min(number, 1 + random() % reach)));
    }
    const std::size_t kept = random() % versions;
    const FoldLimits limits{.chain = 12, .columns = 10 + random() % 40, .lines = 10 + random() % 100};
    const std::vector<LineageMark> marks = folded(rows, kept, limits);
    const LineageLayout layout = layout_of(marks);
    EXPECT_LE(layout.columns, limits.columns);
    EXPECT_LE(layout.lines, limits.lines);
    std::map<std::uint64_t, std::size_t> mark_of;
    for (std::size_t at = 0; at < marks.size(); ++at) {
      for (const std::uint64_t number : numbers_of(marks[at])) {
        EXPECT_TRUE(mark_of.emplace(number, at).second) << number << " is in two marks";
      }
    }
    ASSERT_EQ(mark_of.size(), versions);
    EXPECT_TRUE(marks[mark_of[kept + 1]].folded.empty()) << "the kept one has its own mark";
    for (const LineageRow& row : rows) {
      if (row.ancestor.number == 0) continue;
      const std::size_t at = mark_of[row.version.number];
      const std::size_t above = mark_of[row.ancestor.number];
      if (at != above) {
        EXPECT_EQ(layout.parent[at], above) << row.version.number;
      }
    }
  }
}

}  // namespace
}  // namespace freshet
