// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <iostream>

#include "core/base/format.h"
#include "tests/repo/levels/levels_simulation.h"
#include "tests/support/storm.h"

namespace freshet::sim {
namespace {

TEST(LevelsSimulation, WhatWasAcknowledgedIsRestored) {
  const test::Storm storm(60);
  const std::uint64_t runs = storm.runs();
  LevelsOutcome sum;
  storm.run([&sum](std::uint64_t seed) {
    const LevelsOutcome outcome = simulate_levels(seed, LevelsSabotage::none);
    sum.events += outcome.events;
    sum.lives += outcome.lives;
    sum.captured += outcome.captured;
    sum.local += outcome.local;
    sum.group += outcome.group;
    sum.external += outcome.external;
    sum.failed += outcome.failed;
    sum.restored += outcome.restored;
    sum.resized += outcome.resized;
    sum.rebuilt += outcome.rebuilt;
    sum.refused += outcome.refused;
    sum.lost += outcome.lost;
    sum.strangers += outcome.strangers;
    return outcome.violation;
  });
  if (HasFatalFailure()) return;
  std::cout << format(
      "{}: {} events, {} lives, {} versions, {} at local, {} at group, {} at external, {} failed somewhere, "
      "{} restarts ({} with other ranks, {} shards rebuilt), {} refused, {} ranks named as lost, {} of other jobs\n",
      storm.seeds(), sum.events, sum.lives, sum.captured, sum.local, sum.group, sum.external, sum.failed, sum.restored,
      sum.resized, sum.rebuilt, sum.refused, sum.lost, sum.strangers);
  // A storm in which nothing happens would prove nothing.
  if (runs >= 20) {
    EXPECT_GT(sum.local, 5 * runs);
    EXPECT_GT(sum.external, runs);
    EXPECT_GT(sum.restored, runs);
    EXPECT_GT(sum.resized, runs / 2);
    EXPECT_GT(sum.group, runs);
    EXPECT_GT(sum.rebuilt, runs / 4);
    EXPECT_GT(sum.lost, runs);
    EXPECT_GT(sum.strangers, runs / 4);
  }
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
