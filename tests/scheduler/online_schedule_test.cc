// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "scheduler/schedule.h"

namespace freshet {
namespace {

constexpr std::int64_t kMs = 1'000'000;

ReplayClock clock_of(std::int64_t warmup, std::int64_t rows, double stall_steps, std::int64_t requests) {
  const Timing timing{.step_ns = 10 * kMs,
                      .stall_ns = static_cast<std::int64_t>(stall_steps * 10 * kMs),
                      .delivery_ns = 15 * kMs,
                      .infer_ns = 2 * kMs};
  auto clock = ReplayClock::make(timing, {.warmup = warmup, .rows = rows, .requests = requests});
  EXPECT_TRUE(clock) << clock.error().message();
  return *clock;
}

std::vector<double> decaying(std::size_t rows, double noise, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  std::vector<double> losses;
  for (std::size_t row = 1; row <= rows; ++row) {
    losses.push_back(2 * std::exp(-static_cast<double>(row) / 300) + 0.3 + noise * normal(random));
  }
  return losses;
}

PublishRows decisions(const ReplayClock& clock, const std::vector<double>& losses) {
  return publishes_of(*online_schedule(clock), clock, losses);
}

/// The exact minimum of the cumulative loss by trying, for each number of publishes, every row: rows² publishes steps.
/// A cost that changes by the same amount for every request changes no schedule's rank.
double least_cumulative_loss(const ReplayClock& clock, const std::vector<double>& costs) {
  const std::int64_t first = clock.horizon().warmup, last = clock.horizon().rows;
  const auto cost = [&](std::int64_t row) { return costs[static_cast<std::size_t>(row - 1)]; };
  const std::size_t width = static_cast<std::size_t>(last - first + 1);
  std::vector<double> before(width, std::numeric_limits<double>::infinity());
  before[0] = cost(first) * static_cast<double>(clock.horizon().requests);
  double best = before[0];
  for (std::int64_t k = 1; k <= last - first; ++k) {
    std::vector<double> now(width, std::numeric_limits<double>::infinity());
    double layer = std::numeric_limits<double>::infinity();
    for (std::int64_t row = first + k; row <= last; ++row) {
      const std::int64_t served = clock.horizon().requests - clock.requests_before(clock.served_at(row, k));
      for (std::int64_t from = first + k - 1; from < row; ++from) {
        const double total =
            before[static_cast<std::size_t>(from - first)] + static_cast<double>(served) * (cost(row) - cost(from));
        now[static_cast<std::size_t>(row - first)] = std::min(now[static_cast<std::size_t>(row - first)], total);
      }
      layer = std::min(layer, now[static_cast<std::size_t>(row - first)]);
    }
    if (layer >= best) break;  // On a falling curve, more publishes only cost more from here on.
    best = layer;
    before = now;
  }
  return best;
}

double cost_of(const ReplayClock& clock, const std::vector<double>& costs, const PublishRows& rows) {
  const auto from = costs.begin() + clock.horizon().warmup - 1;
  const auto sum = cumulative_loss(clock, std::vector<double>(from, costs.end()), rows);
  EXPECT_TRUE(sum) << sum.error().message();
  return sum.value_or(0);
}

TEST(OnlineSchedule, LaterRowsChangeNoDecision) {
  for (const double noise : {0.0, 0.2}) {
    for (const double stall : {0.1, 5.0}) {
      const ReplayClock clock = clock_of(50, 1200, stall, 6000);
      const std::vector<double> losses = decaying(1200, noise, 7);
      const PublishRows rows = decisions(clock, losses);
      ASSERT_GT(rows.size(), 4U);
      for (const std::size_t cut : {51U, 200U, 700U, 1199U}) {
        std::vector<double> corrupted = losses;
        for (std::size_t i = cut; i < corrupted.size(); ++i) {
          corrupted[i] = i % 3 == 0 ? std::nan("") : i % 3 == 1 ? -1e30 : 1e6;
        }
        const PublishRows other = decisions(clock, corrupted);
        for (const std::int64_t row : rows) {
          if (row > static_cast<std::int64_t>(cut)) break;
          EXPECT_TRUE(std::count(other.begin(), other.end(), row)) << "row " << row << " of " << cut;
        }
        for (const std::int64_t row : other) {
          if (row > static_cast<std::int64_t>(cut)) break;
          EXPECT_TRUE(std::count(rows.begin(), rows.end(), row)) << "row " << row << " of " << cut;
        }
      }
    }
  }
}

TEST(OnlineSchedule, CleanCurvesComeNearTheExactOptimum) {
  for (const double stall : {0.0, 0.5, 5.0, 60.0}) {
    const ReplayClock clock = clock_of(40, 700, stall, 3600);
    const std::vector<double> losses = decaying(700, 0, 1);
    const double best = least_cumulative_loss(clock, losses);
    EXPECT_LE(cost_of(clock, losses, decisions(clock, losses)), best * 1.01) << "a stall of " << stall << " steps";
  }
}

TEST(OnlineSchedule, NoiseIsNotTakenForProgress) {
  const ReplayClock clock = clock_of(100, 1500, 10, 9000);
  const std::vector<double> trend = decaying(1500, 0, 1);
  const double best = least_cumulative_loss(clock, trend);
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    const PublishRows rows = decisions(clock, decaying(1500, 0.3, seed));
    EXPECT_LE(cost_of(clock, trend, rows), best * 1.05) << "seed " << seed;
  }
}

TEST(OnlineSchedule, ADivergedVersionIsNotPublished) {
  std::vector<double> losses = decaying(1200, 0.02, 3);
  for (std::size_t i = 600; i < losses.size(); ++i) losses[i] += 3;
  for (const std::int64_t row : decisions(clock_of(50, 1200, 1, 8000), losses)) EXPECT_LE(row, 602);
}

TEST(OnlineSchedule, ARecoveredRunIsPublishedAgain) {
  std::vector<double> losses = decaying(1200, 0.02, 3);
  for (std::size_t i = 400; i < 500; ++i) losses[i] += 3;
  const PublishRows rows = decisions(clock_of(50, 1200, 1, 8000), losses);
  EXPECT_GT(std::count_if(rows.begin(), rows.end(), [](std::int64_t row) { return row > 520; }), 3);
  EXPECT_EQ(std::count_if(rows.begin(), rows.end(), [](std::int64_t row) { return row > 404 && row <= 500; }), 0);
}

/// A warm restart: after `row`, the loss is higher by 1, and falls back within 400 rows.
std::vector<double> restarted(std::vector<double> losses, std::int64_t row) {
  for (auto i = static_cast<std::size_t>(row); i < losses.size(); ++i) {
    const double share = std::min(1.0, static_cast<double>(i - static_cast<std::size_t>(row)) / 400);
    losses[i] += 0.5 + 0.5 * std::cos(M_PI * share);
  }
  return losses;
}

TEST(OnlineSchedule, AWarmRestartDoesNotReplaceTheVersionBeforeIt) {
  // Cheap publishes come every few rows, so that the last one is always shortly before the jump.
  const ReplayClock clock = clock_of(100, 1600, 0.2, 8000);
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    const std::vector<double> losses = restarted(decaying(1600, 0.02, seed), 900);
    const std::vector<double> trend = restarted(decaying(1600, 0, 1), 900);
    const PublishRows rows = decisions(clock, losses);
    const auto after = std::upper_bound(rows.begin(), rows.end(), 910);
    ASSERT_NE(after, rows.end()) << "seed " << seed;
    ASSERT_NE(after, rows.begin()) << "seed " << seed;
    const double served = trend[static_cast<std::size_t>(after[-1] - 1)];
    EXPECT_LE(trend[static_cast<std::size_t>(*after - 1)], served + 0.04) << "seed " << seed << ", row " << *after;
    EXPECT_GT(rows.end() - after, 20) << "seed " << seed;
  }
}

TEST(OnlineSchedule, AVersionWhoseOwnBatchIsTheFirstHighOneIsReplaced) {
  // A row's loss is computed before its update, so the version of a row shows itself in the next row's loss.
  const ReplayClock clock = clock_of(100, 1600, 0.2, 8000);
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    const std::vector<double> usual = decaying(1600, 0.02, seed);
    const PublishRows before = decisions(clock, usual);
    const std::int64_t hurt = *std::lower_bound(before.begin(), before.end(), 900);
    const PublishRows rows = decisions(clock, restarted(usual, hurt));
    const auto next = std::upper_bound(rows.begin(), rows.end(), hurt + 10);
    ASSERT_NE(next, rows.end()) << "seed " << seed;
    EXPECT_LT(*next, hurt + 200) << "seed " << seed;
  }
}

TEST(OnlineSchedule, MissingLossesAreSurvived) {
  const double infinity = std::numeric_limits<double>::infinity();
  const double largest = std::numeric_limits<double>::max();
  for (const double bad : {std::nan(""), infinity, -infinity, largest, -largest}) {
    std::vector<double> losses = decaying(900, 0.05, 5);
    for (std::size_t i = 0; i < losses.size(); i += 3) losses[i] = bad;
    const ReplayClock clock = clock_of(60, 900, 2, 5000);
    const PublishRows rows = decisions(clock, losses);
    EXPECT_GT(rows.size(), 4U);
    EXPECT_LT(rows.size(), 100U);
    EXPECT_TRUE(decisions(clock, std::vector<double>(900, bad)).size() <= 900);
  }
}

TEST(OnlineSchedule, LossesMayBeNegative) {
  std::vector<double> losses = decaying(900, 0.05, 5);
  const ReplayClock clock = clock_of(60, 900, 2, 5000);
  for (double& loss : losses) loss -= 50;
  const PublishRows rows = decisions(clock, losses);
  EXPECT_GT(rows.size(), 4U);
  EXPECT_LT(rows.size(), 100U);
}

TEST(OnlineSchedule, AStandstillIsLeftWhenTheLossFalls) {
  // Losses that are exactly equal have no noise that later ones could be measured by.
  for (const double level : {0.0, 1.0, 2.3}) {
    std::vector<double> losses(1500, level);
    for (std::size_t i = 400; i < losses.size(); ++i) {
      losses[i] = level - 0.9 * (1 - std::exp(-static_cast<double>(i - 400) / 300));
    }
    for (const double stall : {0.2, 5.0}) {
      const ReplayClock clock = clock_of(100, 1500, stall, 8000);
      std::vector<double> costs = losses;
      for (double& cost : costs) cost += 1 - level;
      const double best = least_cumulative_loss(clock, costs);
      EXPECT_LE(cost_of(clock, costs, decisions(clock, losses)), best * 1.03) << level << ", a stall of " << stall;
    }
  }
}

TEST(OnlineSchedule, HugeFirstLossesHideNothing) {
  std::vector<double> losses = decaying(1500, 0, 1);
  const std::vector<double> usual = losses;
  for (std::size_t i = 0; i < 30; ++i) losses[i] += 1e6 * std::exp(-static_cast<double>(i) / 2);
  const ReplayClock clock = clock_of(150, 1500, 20, 8000);
  EXPECT_LE(cost_of(clock, usual, decisions(clock, losses)), least_cumulative_loss(clock, usual) * 1.03);
}

TEST(OnlineSchedule, ConstantLossesNeedNoPublish) {
  EXPECT_TRUE(decisions(clock_of(60, 900, 2, 5000), std::vector<double>(900, 1.5)).empty());
}

TEST(OnlineSchedule, WhatATrainingThatIsShortBesideAStallLearntIsPublishedAtItsEnd) {
  const ReplayClock clock = clock_of(40, 997, 20'000, 500'000);
  const std::vector<double> losses = decaying(997, 0.02, 7);
  const PublishRows published = decisions(clock, losses);
  ASSERT_FALSE(published.empty());
  EXPECT_GT(published.back(), 900);
}

TEST(OnlineSchedule, NothingIsPublishedForNobody) {
  // The last request comes before anything could be delivered.
  EXPECT_TRUE(decisions(clock_of(60, 900, 2, 5), decaying(900, 0.05, 5)).empty());
}

}  // namespace
}  // namespace freshet
