// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "bindings/cli/bisect/search.h"

namespace freshet::cli {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(BisectSearch, FindsEveryFirstBadVersionInLogarithmicallyManyTrials) {
  for (std::size_t count = 2; count <= 70; ++count) {
    for (std::size_t first_bad = 1; first_bad < count; ++first_bad) {
      std::size_t trials = 0;
      const auto found = find_first_bad(count, [&](std::size_t at) -> Result<Verdict> {
        ++trials;
        return at >= first_bad ? Verdict::bad : Verdict::good;
      });
      ASSERT_EQ(found->first_bad, first_bad);
      ASSERT_EQ(found->last_good, first_bad - 1);
      ASSERT_THAT(found->skipped, IsEmpty());
      ASSERT_LE(std::size_t{1} << trials, 2 * count);
    }
  }
}

TEST(BisectSearch, WhatCannotBeTriedIsAskedOnceAndNamedWhereItMatters) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const std::size_t count = 2 + random() % 40;
    const std::size_t first_bad = 1 + random() % (count - 1);
    std::vector<bool> skipped(count);
    for (std::size_t at = 1; at + 1 < count; ++at) skipped[at] = random() % 3 != 0;
    std::set<std::size_t> asked;
    const auto found = find_first_bad(count, [&](std::size_t at) -> Result<Verdict> {
      EXPECT_TRUE(at > 0 && at + 1 < count && asked.insert(at).second) << at;
      return skipped[at] ? Verdict::skipped : at >= first_bad ? Verdict::bad : Verdict::good;
    });
    // The nearest on both sides that can be tried, and all between them.
    std::size_t bad = first_bad;
    while (skipped[bad]) ++bad;
    std::size_t good = first_bad - 1;
    while (skipped[good]) --good;
    EXPECT_EQ(found->first_bad, bad);
    EXPECT_EQ(found->last_good, good);
    EXPECT_EQ(found->skipped.size(), bad - good - 1);
  }
}

TEST(BisectSearch, OneCulpritAmongManyTakesFewTrials) {
  for (std::size_t culprit : {0, 17, 254, 499}) {
    std::size_t trials = 0;
    const auto found = find_least_bad_set(500, [&](std::span<const std::size_t> set) -> Result<Verdict> {
      ++trials;
      return std::ranges::find(set, culprit) != set.end() ? Verdict::bad : Verdict::good;
    });
    EXPECT_THAT(*found, ElementsAre(culprit));
    EXPECT_LE(trials, 18u) << "twice the logarithm of 500";
  }
}

TEST(BisectSearch, EveryMemberOfAFoundSetIsNeeded) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const std::size_t count = 1 + random() % 30;
    // Bad with all of one group of culprits; some sets cannot be tried.
    std::vector<std::set<std::size_t>> groups(1 + random() % 3);
    for (auto& group : groups) {
      while (group.size() < 1 + random() % 4 && group.size() < count) group.insert(random() % count);
    }
    const bool has_gaps = random() % 2 == 0;
    std::set<std::vector<std::size_t>> asked;
    const auto judge = [&](std::span<const std::size_t> set) {
      const bool bad =
          std::ranges::any_of(groups, [&](const auto& group) { return std::ranges::includes(set, group); });
      std::size_t sum = set.size();
      for (const std::size_t at : set) sum += at;
      if (has_gaps && set.size() < count && sum % 7 == 3) return Verdict::skipped;
      return bad ? Verdict::bad : Verdict::good;
    };
    const auto found = find_least_bad_set(count, [&](std::span<const std::size_t> set) -> Result<Verdict> {
      EXPECT_TRUE(std::ranges::is_sorted(set));
      EXPECT_TRUE(asked.emplace(set.begin(), set.end()).second) << "asked twice";
      return judge(set);
    });
    ASSERT_EQ(judge(*found), Verdict::bad);
    for (std::size_t at = 0; found->size() > 1 && at < found->size(); ++at) {
      std::vector<std::size_t> without = *found;
      without.erase(without.begin() + static_cast<std::ptrdiff_t>(at));
      EXPECT_NE(judge(without), Verdict::bad);
    }
  }
}

TEST(BisectSearch, AnErrorEndsIt) {
  const auto broken = [](auto&&) -> Result<Verdict> { return fail(Code::cancelled, "interrupted"); };
  EXPECT_EQ(find_first_bad(9, broken).error().code(), Code::cancelled);
  EXPECT_EQ(find_least_bad_set(9, broken).error().code(), Code::cancelled);
}

}  // namespace
}  // namespace freshet::cli
