// SPDX-License-Identifier: Apache-2.0
#include "predictor/schedules.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tests/predictor/random_case.h"

namespace freshet {
namespace {

ReplayClock clock_of(std::int64_t warmup, std::int64_t rows, std::int64_t requests = 100) {
  return *ReplayClock::make({.step_ns = 10, .stall_ns = 3, .delivery_ns = 4, .infer_ns = 7}, {warmup, rows, requests});
}

TEST(Schedules, EveryCountsFromTheWarmUp) {
  EXPECT_EQ(every_schedule(clock_of(3, 10), 2), (PublishRows{5, 7, 9}));
  EXPECT_EQ(every_schedule(clock_of(3, 10), 7), (PublishRows{10}));
  EXPECT_EQ(every_schedule(clock_of(3, 10), 8), PublishRows{});
}

TEST(Schedules, EpochsCountFromTheRunsFirstRow) {
  EXPECT_EQ(epoch_schedule(clock_of(3, 12), 4), (PublishRows{4, 8, 12}));
  EXPECT_EQ(epoch_schedule(clock_of(4, 11), 4), (PublishRows{8}));
  EXPECT_EQ(epoch_schedule(clock_of(4, 11), 12), PublishRows{});
}

TEST(Schedules, FixedIsTheBestOfAllIntervals) {
  constexpr std::uint64_t kSchedulesSeed = 20240814;
  std::mt19937_64 random(kSchedulesSeed);
  for (int round = 0; round < 2000; ++round) {
    const test::RandomCase setting = test::random_case(random, 30);
    const ReplayClock clock = setting.clock();
    const auto fixed = fixed_schedule(clock, setting.costs);
    ASSERT_TRUE(fixed);
    const double loss = *cumulative_loss(clock, setting.costs, fixed->rows);
    const bool any = fixed->interval > 0;
    EXPECT_EQ(fixed->rows, any ? every_schedule(clock, fixed->interval) : PublishRows{});
    EXPECT_LE(loss, *cumulative_loss(clock, setting.costs, {}));
    for (std::int64_t interval = 1; interval <= setting.horizon.rows - setting.horizon.warmup; ++interval) {
      const double other = *cumulative_loss(clock, setting.costs, every_schedule(clock, interval));
      ASSERT_LE(loss, other) << "seed " << kSchedulesSeed << " round " << round << ": " << setting.text();
      EXPECT_TRUE(loss < other || interval <= fixed->interval || !any) << setting.text();
    }
  }
}

TEST(Schedules, GreedyPublishesWhenTheCostFellFarEnough) {
  const std::vector<double> costs{10, 9.5, 9, 8.9, 9.4, 7.8, 7.8, 6.8};
  EXPECT_EQ(*greedy_schedule(clock_of(1, 8), costs, 0.9), (PublishRows{3, 6, 8}));
  EXPECT_EQ(*greedy_schedule(clock_of(1, 8), costs, 1), (PublishRows{4, 6}));
  EXPECT_EQ(*greedy_schedule(clock_of(1, 8), costs, 0), (PublishRows{2, 3, 4, 6, 8}));
}

TEST(Schedules, GreedyStopsWhereNothingIsServedInTime) {
  const std::vector<double> costs{10, 9, 8, 7, 6, 5, 4, 3};
  // The last request comes at 35: row 3, second publish, at 20 + 6 + 4 = 30 is in time, row 4 at 43 is not.
  EXPECT_EQ(*greedy_schedule(clock_of(1, 8, 5), costs, 0.5), (PublishRows{2, 3}));
}

TEST(Schedules, TheThresholdIsMeanPlusDeviationOfTheFalls) {
  EXPECT_EQ(greedy_threshold(std::vector<double>{9, 8, 7, 6}), 1);
  EXPECT_EQ(greedy_threshold(std::vector<double>{9, 8, 8, 5, 5}), 1 + std::sqrt(6.0 / 4));
  EXPECT_EQ(greedy_threshold(std::vector<double>{9, 8, std::nan(""), 3, 2}), 1);
  EXPECT_EQ(greedy_threshold(std::vector<double>{1, 5, 9}), 0) << "a rise is no reason to publish at every row";
  EXPECT_EQ(greedy_threshold(std::vector<double>{1}), 0);
  EXPECT_EQ(greedy_threshold({}), 0);
}

TEST(Schedules, TheFallbackSpendsAPercentOnStalls) {
  const auto with = [](std::int64_t stall, std::int64_t rows) {
    return fallback_schedule(*ReplayClock::make({10, stall, 0, 1}, {1, rows, 1})).interval;
  };
  EXPECT_EQ(with(0, 1001), 1);
  EXPECT_EQ(with(2, 1001), 21);
  EXPECT_EQ(with(1000, 1001), 50) << "at least 20 publishes";
  EXPECT_EQ(with(1000, 3), 1);
}

TEST(Schedules, RefuseCostsThatAreNotThereOrNotFinite) {
  for (const auto& costs : {std::vector<double>{1, 2}, std::vector<double>{1, 2, INFINITY, 4}}) {
    EXPECT_FALSE(fixed_schedule(clock_of(1, 4), costs));
    EXPECT_FALSE(greedy_schedule(clock_of(1, 4), costs, 0));
  }
}

}  // namespace
}  // namespace freshet
