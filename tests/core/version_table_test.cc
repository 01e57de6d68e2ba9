// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "core/arena/arena.h"

namespace freshet {
namespace {

VersionTable::Entry entry(VersionNumber number, std::vector<SegmentIndex> segments) {
  auto manifest = std::make_shared<Manifest>();
  manifest->name = {.model = "m", .number = number};
  return {.manifest = manifest, .segments = std::move(segments)};
}

TEST(VersionTable, FreesASegmentWithItsLastVersion) {
  VersionTable table;
  table.add(entry(1, {10, 11}), 1);
  table.add(entry(2, {10, 12}), 1);
  EXPECT_EQ(table.release(1, 1), (std::vector<SegmentIndex>{11}));
  EXPECT_EQ(table.find(1), nullptr);
  EXPECT_TRUE(table.hold(2, 5));
  EXPECT_TRUE(table.release(2, 1).empty());
  EXPECT_EQ(table.newest()->manifest->name.number, 2u);
  EXPECT_EQ(table.release_all(5), (std::vector<SegmentIndex>{10, 12}));
  EXPECT_EQ(table.newest(), nullptr);
  EXPECT_FALSE(table.hold(2, 5));
}

TEST(VersionTable, AgreesWithABruteForceModel) {
  for (const std::uint64_t seed : {std::uint64_t{3}, std::uint64_t{std::random_device()()}}) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    const auto below = [&](std::uint64_t n) { return random() % n; };
    VersionTable table;
    std::map<VersionNumber, std::vector<SegmentIndex>> versions;
    std::map<VersionNumber, std::set<HolderId>> holders;
    const auto named = [&] {
      std::set<SegmentIndex> all;
      for (const auto& [number, segments] : versions) all.insert(segments.begin(), segments.end());
      return all;
    };
    VersionNumber last = 0;
    SegmentIndex next_segment = 0;
    std::vector<SegmentIndex> current;
    for (int i = 0; i < 6; ++i) current.push_back(next_segment++);
    for (int step = 0; step < 3000; ++step) {
      const std::set<SegmentIndex> before = named();
      const HolderId holder = below(4);
      std::vector<SegmentIndex> freed;
      const auto drop = [&](VersionNumber number) {
        holders[number].erase(holder);
        if (!holders[number].empty()) return;
        holders.erase(number);
        versions.erase(number);
      };
      switch (below(4)) {
        case 0:
          for (SegmentIndex& segment : current) {
            if (below(3) == 0) segment = next_segment++;
          }
          last += 1 + below(3);
          // A segment is never named again after it was freed, so a table without the last version starts afresh.
          if (!versions.contains(last)) {
            const std::set<SegmentIndex> known = named();
            for (SegmentIndex& segment : current) {
              if (!known.contains(segment)) segment = next_segment++;
            }
          }
          table.add(entry(last, current), holder);
          versions[last] = current;
          holders[last] = {holder};
          break;
        case 1: {
          const VersionNumber number = last - below(last + 1 > 6 ? 6 : last + 1);
          EXPECT_EQ(table.hold(number, holder), versions.contains(number));
          if (versions.contains(number)) holders[number].insert(holder);
          break;
        }
        case 2: {
          const VersionNumber number = last - below(last + 1 > 6 ? 6 : last + 1);
          freed = table.release(number, holder);
          if (versions.contains(number) && holders[number].contains(holder)) drop(number);
          break;
        }
        default: {
          freed = table.release_all(holder);
          std::vector<VersionNumber> held;
          for (const auto& [number, by] : holders) {
            if (by.contains(holder)) held.push_back(number);
          }
          for (const VersionNumber number : held) drop(number);
        }
      }
      const std::set<SegmentIndex> after = named();
      std::set<SegmentIndex> expected;
      for (const SegmentIndex segment : before) {
        if (!after.contains(segment)) expected.insert(segment);
      }
      ASSERT_EQ(std::set<SegmentIndex>(freed.begin(), freed.end()), expected) << "step " << step;
      ASSERT_EQ(freed.size(), expected.size());
      std::vector<VersionNumber> numbers;
      for (const auto& [number, segments] : versions) {
        numbers.push_back(number);
        ASSERT_NE(table.find(number), nullptr);
        for (HolderId h = 0; h < 4; ++h) ASSERT_EQ(table.is_held_by(number, h), holders[number].contains(h));
      }
      ASSERT_EQ(table.numbers(), numbers);
    }
  }
}

}  // namespace
}  // namespace freshet
