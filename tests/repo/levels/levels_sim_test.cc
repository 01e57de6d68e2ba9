// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <iostream>

#include "core/base/format.h"
#include "tests/repo/levels/levels_simulation.h"
#include "tests/support/from_environment.h"

namespace freshet::sim {
namespace {

/// FRESHET_SIM_SEED and FRESHET_SIM_RUNS choose; a failure prints the seed that repeats it alone.
TEST(LevelsSimulation, WhatWasAcknowledgedIsRestored) {
  const std::uint64_t first = from_environment("FRESHET_SIM_SEED", 1);
  const std::uint64_t runs = from_environment("FRESHET_SIM_RUNS", 60);
  LevelsOutcome sum;
  for (std::uint64_t seed = first; seed < first + runs; ++seed) {
    const LevelsOutcome outcome = simulate_levels(seed, LevelsSabotage::none);
    ASSERT_EQ(outcome.violation, "") << "repeat it with FRESHET_SIM_SEED=" << seed << " FRESHET_SIM_RUNS=1";
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
  }
  std::cout << format(
      "seeds {} to {}: {} events, {} lives, {} versions, {} at local, {} at group, {} at external, {} failed "
      "somewhere, "
      "{} restarts ({} with other ranks, {} shards rebuilt), {} refused, {} ranks named as lost\n",
      first, first + runs - 1, sum.events, sum.lives, sum.captured, sum.local, sum.group, sum.external, sum.failed,
      sum.restored, sum.resized, sum.rebuilt, sum.refused, sum.lost);
  // A storm in which nothing happens would prove nothing.
  if (runs >= 20) {
    EXPECT_GT(sum.local, 5 * runs);
    EXPECT_GT(sum.external, runs);
    EXPECT_GT(sum.restored, runs);
    EXPECT_GT(sum.resized, runs / 2);
    EXPECT_GT(sum.group, runs);
    EXPECT_GT(sum.rebuilt, runs / 4);
    EXPECT_GT(sum.lost, runs);
  }
}

struct BrokenLevels {
  const char* name;
  LevelsSabotage sabotage;
  const char* noticed_as;
};

class BrokenLevelsRule : public ::testing::TestWithParam<BrokenLevels> {};

TEST_P(BrokenLevelsRule, IsNoticed) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    const LevelsOutcome outcome = simulate_levels(seed, GetParam().sabotage);
    if (outcome.violation.find(GetParam().noticed_as) != std::string::npos) return;
  }
  FAIL() << "60 runs with a broken rule went well";
}

INSTANTIATE_TEST_SUITE_P(
    LevelsSimulation, BrokenLevelsRule,
    ::testing::Values(BrokenLevels{"done_before_sync", LevelsSabotage::done_before_sync, "is not whole"},
                      BrokenLevels{"one_rank_is_enough", LevelsSabotage::one_rank_is_enough, "is not whole"},
                      BrokenLevels{"numbers_from_disk", LevelsSabotage::numbers_from_disk, "is given again"},
                      BrokenLevels{"restore_incomplete", LevelsSabotage::restore_incomplete, "is not whole"},
                      BrokenLevels{"parity_made_up", LevelsSabotage::parity_made_up, "cannot be"}),
    [](const auto& broken) { return broken.param.name; });

}  // namespace
}  // namespace freshet::sim
