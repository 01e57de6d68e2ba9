// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/support/storm.h"
#include "tests/transport/sim/group/group_host.h"

namespace freshet::sim {
namespace {

TEST(GroupSimulation, WhatIsCurrentIsDecidedOnceAndObeyed) {
  test::expect_eventful_storm<GroupOutcome>(
      60, [](std::uint64_t seed) { return simulate_group(seed, GroupSabotage::none); },
      {{"group commits", &GroupOutcome::commits, 3},
       {"swaps of staged versions", &GroupOutcome::swaps, 3},
       {"rollbacks", &GroupOutcome::rollbacks, 0.5},
       {"refused", &GroupOutcome::given_up, 0.5},
       {"looks at lapsed members", &GroupOutcome::lapses, 1},
       {"answers with somebody behind", &GroupOutcome::behind, 0.5}});
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
