// SPDX-License-Identifier: Apache-2.0
#include "predictor/failure_interval.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>

namespace freshet {
namespace {

using ::testing::HasSubstr;

/// A program that computes, checkpoints, fails and starts again, event by event: the share of the time that is lost.
double simulated_waste(const FailureCosts& costs, double interval_s, int segments, std::mt19937_64& random) {
  std::exponential_distribution<double> until_failure(1 / costs.mtbf_s);
  double took = 0;
  for (int done = 0; done < segments;) {
    const double wanted = interval_s + costs.checkpoint_s;
    const double failure = until_failure(random);
    if (failure >= wanted) {
      took += wanted;
      ++done;
      continue;
    }
    took += failure;
    for (;;) {  // A failure during a restart begins it anew.
      const double again = until_failure(random);
      took += std::min(again, costs.restart_s);
      if (again >= costs.restart_s) break;
    }
  }
  return 1 - segments * interval_s / took;
}

FailureCosts random_costs(std::mt19937_64& random, double most) {
  std::uniform_real_distribution<double> exponent(-3, most);
  const double mtbf = std::pow(10, std::uniform_real_distribution<double>(0, 6)(random));
  return {.checkpoint_s = mtbf * std::pow(10, exponent(random)),
          .mtbf_s = mtbf,
          .restart_s = mtbf * std::pow(10, exponent(random))};
}

TEST(FailureIntervalTest, LosesLittleMoreThanTheBestOfASimulation) {
  constexpr std::uint64_t kSeed = 18;
  SCOPED_TRACE(kSeed);
  std::mt19937_64 random(kSeed);
  for (int round = 0; round < 20; ++round) {
    const FailureCosts costs = random_costs(random, -0.5);
    const auto found = failure_interval(costs);
    ASSERT_TRUE(found) << found.error().message();
    const double ours = simulated_waste(costs, found->interval_s, 20000, random);
    EXPECT_NEAR(found->waste, ours, 0.02) << "C " << costs.checkpoint_s << " M " << costs.mtbf_s;
    double least = 1;
    for (double factor = 0.25; factor < 4; factor *= 1.25) {
      least = std::min(least, simulated_waste(costs, factor * found->interval_s, 20000, random));
    }
    EXPECT_LE(ours, 1.02 * least + 0.01) << "C " << costs.checkpoint_s << " M " << costs.mtbf_s;
  }
}

TEST(FailureIntervalTest, NoOtherIntervalWastesLess) {
  constexpr std::uint64_t kSeed = 7;
  SCOPED_TRACE(kSeed);
  std::mt19937_64 random(kSeed);
  for (int round = 0; round < 1000; ++round) {
    const FailureCosts costs = random_costs(random, 0.5);
    const auto found = failure_interval(costs);
    ASSERT_TRUE(found);
    for (const double factor : {0.5, 0.9, 0.99, 1.01, 1.1, 2.0}) {
      EXPECT_LE(found->waste, waste_of(costs, factor * found->interval_s));
    }
    EXPECT_LE(found->waste, waste_of(costs, found->young_s));
    EXPECT_LE(found->waste, waste_of(costs, found->daly_s));
  }
}

TEST(FailureIntervalTest, MeetsTheEstimatesWhereCheckpointsAreCheap) {
  // By hand: C 10 s, M 100,000 s: sqrt(2 C M) = 1414.21; Daly adds C/3 to first order and takes C.
  const auto found = failure_interval({.checkpoint_s = 10, .mtbf_s = 100'000, .restart_s = 60});
  ASSERT_TRUE(found);
  EXPECT_NEAR(found->young_s, 1414.2136, 1e-3);
  EXPECT_NEAR(found->daly_s, 1407.555, 1e-2);
  EXPECT_NEAR(found->interval_s, found->daly_s, 0.01);
  // A month without a failure, checkpoints of a microsecond: nothing is lost to rounding.
  const auto rare = failure_interval({.checkpoint_s = 1e-6, .mtbf_s = 2.6e6});
  ASSERT_TRUE(rare);
  EXPECT_NEAR(rare->interval_s / rare->young_s, 1, 1e-5);
  EXPECT_GT(rare->waste, 0);
  // Daly's bound: as often as failures come.
  EXPECT_EQ(failure_interval({.checkpoint_s = 5, .mtbf_s = 2})->daly_s, 2);
}

TEST(FailureIntervalTest, NamesWhatIsOutOfRange) {
  const auto message = [](const FailureCosts& costs) {
    const auto found = failure_interval(costs);
    return found ? std::string() : found.error().message();
  };
  EXPECT_THAT(message({.checkpoint_s = 0, .mtbf_s = 1}), HasSubstr("checkpoint's cost is 0 s"));
  EXPECT_THAT(message({.checkpoint_s = 1, .mtbf_s = std::nan("")}), HasSubstr("mean time between failures is nan s"));
  EXPECT_THAT(message({.checkpoint_s = 1, .mtbf_s = 1, .restart_s = -1}), HasSubstr("restart's cost is -1 s"));
  EXPECT_THAT(message({.checkpoint_s = 1, .mtbf_s = 1, .restart_s = INFINITY}), HasSubstr("restart's cost is inf s"));
  EXPECT_THAT(message({.checkpoint_s = 1000, .mtbf_s = 1}), HasSubstr("never done"));
}

}  // namespace
}  // namespace freshet
