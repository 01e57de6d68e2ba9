// SPDX-License-Identifier: Apache-2.0
#include "repo/levels/terms/ring.h"

#include <gtest/gtest.h>

#include <iostream>
#include <random>
#include <set>

#include "core/base/format.h"
#include "tests/support/from_environment.h"

namespace freshet::levels {
namespace {

TEST(Ring, NoGroupHasTwoRanksOfOneHostAndEachRankHasACopyElsewhere) {
  const std::uint64_t seed = from_environment("FRESHET_SEED", 3);
  std::cout << "FRESHET_SEED=" << seed << "\n";
  std::mt19937_64 random(seed);
  int made = 0;
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::string> hosts(1 + random() % 40);
    const std::uint64_t names = 1 + random() % 12;
    for (std::string& host : hosts) host = format("h{}", random() % names);
    const auto groups = make_groups(hosts);
    if (!groups) {
      EXPECT_EQ(groups.error().code(), Code::invalid_argument);
      continue;
    }
    ++made;
    std::set<std::uint32_t> seen;
    for (const auto& group : *groups) {
      EXPECT_GE(group.size(), 2U);
      EXPECT_LE(group.size(), kGroupRanksMax);
      std::set<std::string> in_group;
      for (const std::uint32_t rank : group) {
        EXPECT_TRUE(seen.insert(rank).second);
        EXPECT_TRUE(in_group.insert(hosts[rank]).second) << "two ranks of one host";
      }
    }
    EXPECT_EQ(seen.size(), hosts.size());
    for (std::uint32_t rank = 0; rank < hosts.size(); ++rank) {
      const RingPlace place = place_in_ring(*groups, rank);
      EXPECT_NE(hosts[place.copy_is_at], hosts[rank]);
      EXPECT_EQ(place_in_ring(*groups, place.copy_is_at).keeps_copy_of, rank);
    }
  }
  EXPECT_GT(made, 300);
}

TEST(Ring, EvenHostsAlwaysHaveGroups) {
  for (std::uint32_t hosts = 2; hosts < 20; ++hosts) {
    for (std::uint32_t each = 1; each < 5; ++each) {
      std::vector<std::string> names;
      for (std::uint32_t rank = 0; rank < hosts * each; ++rank) names.push_back(format("h{}", rank / each));
      EXPECT_TRUE(make_groups(names)) << hosts << " hosts with " << each << " ranks";
    }
  }
  EXPECT_FALSE(make_groups(std::vector<std::string>{"a", "a"}));
  EXPECT_FALSE(make_groups(std::vector<std::string>{"a"}));
}

}  // namespace
}  // namespace freshet::levels
