// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/repo/levels/levels_simulation.h"
#include "tests/support/storm.h"

namespace freshet::sim {
namespace {

TEST(LevelsSimulation, WhatWasAcknowledgedIsRestored) {
  test::expect_eventful_storm<LevelsOutcome>(
      60, [](std::uint64_t seed) { return simulate_levels(seed, LevelsSabotage::none); },
      {{"events", &LevelsOutcome::events},
       {"lives", &LevelsOutcome::lives},
       {"versions", &LevelsOutcome::captured},
       {"at local", &LevelsOutcome::local, 5},
       {"at group", &LevelsOutcome::group, 1},
       {"at external", &LevelsOutcome::external, 1},
       {"failed somewhere", &LevelsOutcome::failed},
       {"restarts", &LevelsOutcome::restored, 1},
       {"restarts with other ranks", &LevelsOutcome::resized, 0.5},
       {"shards rebuilt", &LevelsOutcome::rebuilt, 0.25},
       {"refused", &LevelsOutcome::refused},
       {"ranks named as lost", &LevelsOutcome::lost, 1},
       {"ranks of other jobs", &LevelsOutcome::strangers, 0.25}});
}

using BrokenLevels = test::BrokenRuleCase<LevelsSabotage>;

class BrokenLevelsRule : public ::testing::TestWithParam<BrokenLevels> {};

TEST_P(BrokenLevelsRule, IsNoticed) {
  test::expect_noticed(60, GetParam().noticed_as,
                       [](std::uint64_t seed) { return simulate_levels(seed, GetParam().sabotage).violation; });
}

INSTANTIATE_TEST_SUITE_P(
    LevelsSimulation, BrokenLevelsRule,
    ::testing::Values(BrokenLevels{"done_before_sync", LevelsSabotage::done_before_sync, "is not whole"},
                      BrokenLevels{"one_rank_is_enough", LevelsSabotage::one_rank_is_enough, "is not whole"},
                      BrokenLevels{"numbers_from_disk", LevelsSabotage::numbers_from_disk, "is given again"},
                      BrokenLevels{"restore_incomplete", LevelsSabotage::restore_incomplete, "is not whole"},
                      BrokenLevels{"parity_made_up", LevelsSabotage::parity_made_up, "cannot be"},
                      BrokenLevels{"any_job_may_meet", LevelsSabotage::any_job_may_meet, "was taken in"}),
    test::kNameOfRule);

}  // namespace
}  // namespace freshet::sim
