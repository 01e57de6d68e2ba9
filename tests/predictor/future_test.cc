// SPDX-License-Identifier: Apache-2.0
// Nothing that comes later changes a decision.

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "predictor/plan.h"
#include "scheduler/schedule.h"

namespace freshet {
namespace {

constexpr std::uint64_t kFutureSeed = 20240815;
constexpr std::int64_t kWarmup = 150;
constexpr std::int64_t kFutureRows = 1500;

ReplayClock clock_of() {
  return *ReplayClock::make(
      {.step_ns = 10'000'000, .stall_ns = 15'000'000, .delivery_ns = 40'000'000, .infer_ns = 5'000'000},
      {.warmup = kWarmup, .rows = kFutureRows, .requests = 3000});
}

std::vector<double> noisy_losses(std::mt19937_64& random) {
  std::normal_distribution<> noise(0, 0.05);
  std::vector<double> losses;
  for (std::int64_t row = 1; row <= kFutureRows; ++row) {
    losses.push_back(0.3 + 3 * std::pow(static_cast<double>(row), -0.35) + noise(random));
  }
  return losses;
}

/// The same up to `row`, something else afterwards.
std::vector<double> corrupted_after(std::vector<double> losses, std::int64_t row, std::mt19937_64& random) {
  const std::vector<double> other{NAN, 0, -1, 1e300, 50, 0.001};
  for (std::size_t i = static_cast<std::size_t>(row); i < losses.size(); ++i)
    losses[i] = other[random() % other.size()];
  return losses;
}

TEST(Future, PlansAreMadeFromTheWarmUpAlone) {
  std::mt19937_64 random(kFutureSeed);
  const std::vector<double> losses = noisy_losses(random);
  const std::vector<double> corrupted = corrupted_after(losses, kWarmup, random);
  const auto plan = plan_schedules(clock_of(), std::span(losses).first(kWarmup));
  const auto again = plan_schedules(clock_of(), std::span(corrupted).first(kWarmup));
  ASSERT_TRUE(plan && again);
  EXPECT_FALSE(plan->optimal.empty());
  EXPECT_EQ(plan->fixed.rows, again->fixed.rows);
  EXPECT_EQ(plan->greedy, again->greedy);
  EXPECT_EQ(plan->optimal, again->optimal);
}

TEST(Future, OnlineDecidesFromWhatItHasSeen) {
  std::mt19937_64 random(kFutureSeed + 1);
  const std::vector<double> losses = noisy_losses(random);
  const ReplayClock clock = clock_of();
  const PublishRows rows = publishes_of(*online_schedule(clock), clock, losses);
  EXPECT_FALSE(rows.empty());
  for (const std::int64_t row : {kWarmup, kWarmup + 1, kWarmup + 90, kFutureRows / 2, kFutureRows - 1}) {
    const PublishRows others = publishes_of(*online_schedule(clock), clock, corrupted_after(losses, row, random));
    const auto until = [row](const PublishRows& all) {
      return PublishRows(all.begin(), std::upper_bound(all.begin(), all.end(), row));
    };
    EXPECT_EQ(until(rows), until(others)) << "seed " << kFutureSeed + 1 << ", corrupted after row " << row;
  }
}

}  // namespace
}  // namespace freshet
