// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <iostream>
#include <string>

#include "core/base/format.h"
#include "tests/support/storm.h"
#include "tests/transport/sim/group/group_host.h"

namespace freshet::sim {
namespace {

TEST(GroupSimulation, WhatIsCurrentIsDecidedOnceAndObeyed) {
  const test::Storm storm(60);
  const std::uint64_t runs = storm.runs();
  GroupOutcome sum;
  storm.run([&sum](std::uint64_t seed) {
    const GroupOutcome outcome = simulate_group(seed, GroupSabotage::none);
    sum.commits += outcome.commits;
    sum.given_up += outcome.given_up;
    sum.rollbacks += outcome.rollbacks;
    sum.swaps += outcome.swaps;
    sum.lapses += outcome.lapses;
    return outcome.violation;
  });
  if (HasFatalFailure()) return;
  std::cout << format(
      "{}: {} group commits, {} swaps of staged versions, {} rollbacks, {} refused, {} looks at lapsed members\n",
      storm.seeds(), sum.commits, sum.swaps, sum.rollbacks, sum.given_up, sum.lapses);
  // A storm in which nothing is decided would prove nothing.
  if (runs >= 20) {
    EXPECT_GT(sum.commits, 3 * runs);
    EXPECT_GT(sum.swaps, 3 * runs);
    EXPECT_GT(sum.rollbacks, runs / 2);
    EXPECT_GT(sum.given_up, runs / 2);
    EXPECT_GT(sum.lapses, runs);
  }
}

using BrokenDecision = test::BrokenRuleCase<GroupSabotage>;

class BrokenGroupRule : public ::testing::TestWithParam<BrokenDecision> {};

TEST_P(BrokenGroupRule, IsNoticed) {
  test::expect_noticed(60, GetParam().noticed_as,
                       [](std::uint64_t seed) { return simulate_group(seed, GetParam().sabotage).violation; });
}

INSTANTIATE_TEST_SUITE_P(
    GroupSimulation, BrokenGroupRule,
    ::testing::Values(BrokenDecision{"announce_before_swap", GroupSabotage::announce_before_swap,
                                     "that epoch never began"},
                      BrokenDecision{"stage_for_others", GroupSabotage::stage_for_others, "has not staged it"},
                      BrokenDecision{"forget_hold", GroupSabotage::forget_hold, "which never was current"},
                      BrokenDecision{"never_lapse", GroupSabotage::never_lapse, "in good standing"},
                      BrokenDecision{"finish_abandoned", GroupSabotage::finish_abandoned, "heard of"}),
    test::kNameOfRule);

}  // namespace
}  // namespace freshet::sim
