// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <iostream>
#include <string>

#include "core/base/format.h"
#include "tests/support/from_environment.h"
#include "tests/transport/sim/group/group_host.h"

namespace freshet::sim {
namespace {

/// FRESHET_SIM_SEED and FRESHET_SIM_RUNS choose; a failure prints the seed that repeats it alone.
TEST(GroupSimulation, WhatIsCurrentIsDecidedOnceAndObeyed) {
  const std::uint64_t first = from_environment("FRESHET_SIM_SEED", 1);
  const std::uint64_t runs = from_environment("FRESHET_SIM_RUNS", 60);
  GroupOutcome sum;
  for (std::uint64_t seed = first; seed < first + runs; ++seed) {
    const GroupOutcome outcome = simulate_group(seed, GroupSabotage::none);
    ASSERT_EQ(outcome.violation, "") << "repeat it with FRESHET_SIM_SEED=" << seed << " FRESHET_SIM_RUNS=1";
    sum.commits += outcome.commits;
    sum.given_up += outcome.given_up;
    sum.rollbacks += outcome.rollbacks;
    sum.swaps += outcome.swaps;
    sum.lapses += outcome.lapses;
  }
  std::cout << format(
      "seeds {} to {}: {} group commits, {} swaps of staged versions, {} rollbacks, {} refused, {} looks at lapsed "
      "members\n",
      first, first + runs - 1, sum.commits, sum.swaps, sum.rollbacks, sum.given_up, sum.lapses);
  // A storm in which nothing is decided would prove nothing.
  if (runs >= 20) {
    EXPECT_GT(sum.commits, 3 * runs);
    EXPECT_GT(sum.swaps, 3 * runs);
    EXPECT_GT(sum.rollbacks, runs / 2);
    EXPECT_GT(sum.given_up, runs / 2);
    EXPECT_GT(sum.lapses, runs);
  }
}

struct BrokenDecision {
  const char* name;
  GroupSabotage sabotage;
  const char* noticed_as;
};

class BrokenGroupRule : public ::testing::TestWithParam<BrokenDecision> {};

TEST_P(BrokenGroupRule, IsNoticed) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    const GroupOutcome outcome = simulate_group(seed, GetParam().sabotage);
    if (outcome.violation.find(GetParam().noticed_as) != std::string::npos) return;
  }
  FAIL() << "60 runs with a broken rule went well";
}

INSTANTIATE_TEST_SUITE_P(
    GroupSimulation, BrokenGroupRule,
    ::testing::Values(BrokenDecision{"announce_before_swap", GroupSabotage::announce_before_swap,
                                     "that epoch never began"},
                      BrokenDecision{"stage_for_others", GroupSabotage::stage_for_others, "has not staged it"},
                      BrokenDecision{"forget_hold", GroupSabotage::forget_hold, "which never was current"},
                      BrokenDecision{"never_lapse", GroupSabotage::never_lapse, "in good standing"},
                      BrokenDecision{"finish_abandoned", GroupSabotage::finish_abandoned, "heard of"}),
    [](const auto& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace freshet::sim
