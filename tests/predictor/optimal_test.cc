// SPDX-License-Identifier: Apache-2.0
#include "predictor/optimal.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "tests/predictor/random_case.h"

namespace freshet {
namespace {

constexpr std::uint64_t kOptimalSeed = 20240813;

/// The smallest cumulative loss of all lists of rows from `first` on that go on from `published` rows.
double least_of_all(const test::RandomCase& setting, std::int64_t first, const PublishRows& published) {
  const auto free_rows = static_cast<int>(setting.horizon.rows - first + 1);
  double least = std::numeric_limits<double>::infinity();
  for (std::uint32_t subset = 0; subset < (1U << free_rows); ++subset) {
    PublishRows rows = published;
    for (int i = 0; i < free_rows; ++i) {
      if ((subset >> i & 1U) != 0) rows.push_back(first + i);
    }
    least = std::min(least, *cumulative_loss(setting.clock(), setting.costs, rows));
  }
  return least;
}

TEST(Optimal, NoListIsBetterInThousandsOfSmallCases) {
  std::mt19937_64 random(kOptimalSeed);
  for (int round = 0; round < 6000; ++round) {
    const test::RandomCase setting = test::random_case(random, 9);
    const auto schedule = optimal_schedule(setting.clock(), setting.costs);
    ASSERT_TRUE(schedule);
    EXPECT_TRUE(schedule->exact);
    ASSERT_EQ(*cumulative_loss(setting.clock(), setting.costs, schedule->rows),
              least_of_all(setting, setting.horizon.warmup + 1, {}))
        << "seed " << kOptimalSeed << " round " << round << ": " << setting.text();
  }
}

TEST(Optimal, GoesOnFromThePublishesThatWere) {
  std::mt19937_64 random(kOptimalSeed + 1);
  for (int round = 0; round < 3000; ++round) {
    const test::RandomCase setting = test::random_case(random, 10);
    const std::int64_t warmup = setting.horizon.warmup;
    const std::int64_t over = std::uniform_int_distribution<std::int64_t>(warmup, setting.horizon.rows)(random);
    PublishRows rows;
    for (std::int64_t row = warmup + 1; row <= over; ++row) {
      if (random() % 3 == 0) rows.push_back(row);
    }
    std::vector<double> costs(setting.costs.begin() + (over - warmup), setting.costs.end());
    costs[0] = setting.costs[static_cast<std::size_t>((rows.empty() ? warmup : rows.back()) - warmup)];
    const double least = least_of_all(setting, over + 1, rows);
    const auto rest =
        optimal_schedule(setting.clock(), costs, {.row = over, .published = static_cast<std::int64_t>(rows.size())});
    ASSERT_TRUE(rest);
    rows.insert(rows.end(), rest->rows.begin(), rest->rows.end());
    ASSERT_EQ(*cumulative_loss(setting.clock(), setting.costs, rows), least)
        << "seed " << kOptimalSeed + 1 << " round " << round << " from row " << over << ": " << setting.text();
  }
}

TEST(Optimal, TakesOnlyRowsThatAreBelowAllBefore) {
  std::mt19937_64 random(kOptimalSeed + 2);
  for (int round = 0; round < 2000; ++round) {
    const test::RandomCase setting = test::random_case(random, 40);
    const auto schedule = optimal_schedule(setting.clock(), setting.costs);
    ASSERT_TRUE(schedule);
    for (const std::int64_t row : schedule->rows) {
      const auto at = setting.costs.begin() + (row - setting.horizon.warmup);
      EXPECT_LT(*at, *std::min_element(setting.costs.begin(), at)) << setting.text();
    }
  }
}

/// Long enough that layers are kept and gone back over: hundreds of publishes.
TEST(Optimal, LongListsAreAsGoodAsTheSearchSaid) {
  std::vector<double> costs;
  for (int i = 0; i <= 3000; ++i) costs.push_back(0.3 + 8 * std::pow(100 + i, -0.4));
  const auto clock = ReplayClock::make({.step_ns = 1000, .stall_ns = 7, .delivery_ns = 100, .infer_ns = 501},
                                       {.warmup = 100, .rows = 3100, .requests = 8000});
  ASSERT_TRUE(clock);
  const auto schedule = optimal_schedule(*clock, costs);
  ASSERT_TRUE(schedule);
  EXPECT_TRUE(schedule->exact);
  EXPECT_GT(schedule->rows.size(), 600U);
  const double least = *cumulative_loss(*clock, costs, schedule->rows);
  EXPECT_LE(least, *cumulative_loss(*clock, costs, *quick_schedule(*clock, costs)));
  // No publish can be left out, and none can be moved to a neighbour.
  for (std::size_t i = 0; i < schedule->rows.size(); ++i) {
    PublishRows without = schedule->rows;
    without.erase(without.begin() + static_cast<std::ptrdiff_t>(i));
    EXPECT_LE(least, *cumulative_loss(*clock, costs, without) * (1 + 1e-13));
    for (const std::int64_t by : {-1, 1}) {
      PublishRows moved = schedule->rows;
      moved[i] += by;
      const auto loss = cumulative_loss(*clock, costs, moved);
      if (!loss) continue;
      EXPECT_LE(least, *loss * (1 + 1e-13)) << "row " << schedule->rows[i] << " moved by " << by;
    }
  }
}

/// Where a few rows have nearly all there is to gain, the rest of the sum is below their rounding.
TEST(Optimal, CostsMayDifferByManyPowersOfTen) {
  std::mt19937_64 random(kOptimalSeed + 3);
  for (int round = 0; round < 300; ++round) {
    test::RandomCase setting = test::random_case(random, 9);
    for (double& cost : setting.costs) cost = std::pow(10.0, cost / 3);
    const auto schedule = optimal_schedule(setting.clock(), setting.costs);
    ASSERT_TRUE(schedule);
    const double least = least_of_all(setting, setting.horizon.warmup + 1, {});
    const double most = setting.costs.front() * static_cast<double>(setting.horizon.requests);
    ASSERT_LE(*cumulative_loss(setting.clock(), setting.costs, schedule->rows), least + 1e-13 * most)
        << "seed " << kOptimalSeed + 3 << " round " << round << ": " << setting.text();
  }
  std::vector<double> costs;
  for (int i = 0; i < 600; ++i) costs.push_back(std::pow(10.0, 30 - i / 10.0));
  const auto clock = ReplayClock::make({.step_ns = 1000, .stall_ns = 90, .delivery_ns = 100, .infer_ns = 501},
                                       {.warmup = 1, .rows = 600, .requests = 3000});
  ASSERT_TRUE(clock);
  EXPECT_TRUE(optimal_schedule(*clock, costs)->exact);
}

TEST(Optimal, SaysWhenItWasCutOff) {
  std::vector<double> costs;
  for (int i = 0; i <= 3000; ++i) costs.push_back(8 * std::pow(100 + i, -0.4));
  const auto clock = ReplayClock::make({.step_ns = 1000, .stall_ns = 7, .delivery_ns = 100, .infer_ns = 501},
                                       {.warmup = 100, .rows = 3100, .requests = 8000});
  ASSERT_TRUE(clock);
  const auto schedule = optimal_schedule(*clock, costs, {}, 10'000);
  ASSERT_TRUE(schedule);
  EXPECT_FALSE(schedule->exact);
  const double least = *cumulative_loss(*clock, costs, optimal_schedule(*clock, costs)->rows);
  const double cut_off = *cumulative_loss(*clock, costs, schedule->rows);
  EXPECT_GE(cut_off, least);
  EXPECT_LE(cut_off, least + costs.front() - costs.back()) << "the continuous reckoning is within one request's share";
}

TEST(Optimal, RefusesWhatIsOutOfPlace) {
  const auto clock = ReplayClock::make({.step_ns = 1, .infer_ns = 1}, {.warmup = 2, .rows = 4, .requests = 5});
  ASSERT_TRUE(clock);
  EXPECT_FALSE(optimal_schedule(*clock, std::vector<double>{1, 2}));
  EXPECT_FALSE(optimal_schedule(*clock, std::vector<double>{1, std::nan(""), 2}));
  EXPECT_FALSE(optimal_schedule(*clock, std::vector<double>{1e308, 1, -1e308}));
  EXPECT_FALSE(optimal_schedule(*clock, std::vector<double>{1}, {.row = 5}));
  EXPECT_FALSE(optimal_schedule(*clock, std::vector<double>{1, 1}, {.row = 3, .published = 2}));
  EXPECT_TRUE(optimal_schedule(*clock, std::vector<double>{1}, {.row = 4})->rows.empty());
}

}  // namespace
}  // namespace freshet
