// SPDX-License-Identifier: Apache-2.0
/// Forecast::noise() against runs whose noise is known.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "predictor/fit.h"

namespace freshet {
namespace {

constexpr unsigned kNoiseSeed = 20260731;

struct Trend {
  const char* name;
  std::function<double(double)> loss;  ///< Of the share of the run that is over, from 0 to 1, and of 1 at most.
};

std::vector<Trend> trends() {
  return {{"power", [](double t) { return 0.2 + 0.8 * std::pow(1 + 200 * t, -0.5); }},
          {"exponential", [](double t) { return 0.3 + 0.7 * std::exp(-6 * t); }},
          {"line", [](double t) { return 1 - 0.6 * t; }},
          {"logarithm", [](double t) { return 1 / std::log(2.718281828 + 50 * t); }}};
}

struct Kind {
  const char* name;
  std::function<double(std::mt19937&)> draw;  ///< Of mean 0 and standard deviation 1.
};

std::vector<Kind> kinds() {
  return {
      {"normal", [](std::mt19937& random) { return std::normal_distribution<>(0, 1)(random); }},
      {"uniform",
       [](std::mt19937& random) { return std::uniform_real_distribution<>(-std::sqrt(3.0), std::sqrt(3.0))(random); }},
      {"two-sided exponential", [](std::mt19937& random) {
         const double size = std::exponential_distribution<>(std::sqrt(2.0))(random);
         return random() % 2 == 0 ? size : -size;
       }}};
}

double found_noise(const Trend& trend, const Kind& kind, double level, int rows, std::mt19937& random) {
  LossHistory history;
  for (int i = 1; i <= rows; ++i) {
    const double t = static_cast<double>(i) / rows;
    EXPECT_TRUE(history.add(i, trend.loss(t) + level * kind.draw(random)));
  }
  const auto forecast = fit(history);
  EXPECT_TRUE(forecast);
  return forecast ? forecast->noise() : 0;
}

double median_of(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

TEST(Noise, IsTheStandardDeviationOfARowHoweverManyWereMerged) {
  SCOPED_TRACE("seed " + std::to_string(kNoiseSeed));
  std::mt19937 random(kNoiseSeed);
  for (const int rows : {60, 400, 5000}) {
    std::vector<double> ratios;
    for (const Trend& trend : trends()) {
      for (const Kind& kind : kinds()) {
        for (const double level : {0.005, 0.03, 0.15}) {
          const double ratio = found_noise(trend, kind, level, rows, random) / level;
          // Of 60 rows some 25 count as late, and a deviation is known to an eighth.
          const double room = rows < 100 ? 1.7 : 1.25;
          EXPECT_LT(ratio, room) << rows << " rows, " << trend.name << ", " << kind.name << ", " << level;
          EXPECT_GT(ratio, 1 / room) << rows << " rows, " << trend.name << ", " << kind.name << ", " << level;
          ratios.push_back(ratio);
        }
      }
    }
    EXPECT_NEAR(median_of(ratios), 1, 0.1) << rows << " rows";
  }
}

TEST(Noise, RowsThatFollowTheirNeighboursScatterAllTheSame) {
  SCOPED_TRACE("seed " + std::to_string(kNoiseSeed));
  std::mt19937 random(kNoiseSeed);
  for (const Trend& trend : trends()) {
    LossHistory history;
    double noise = 0;
    constexpr int kRows = 5000;
    constexpr double kKept = 0.8;
    for (int i = 1; i <= kRows; ++i) {
      noise = kKept * noise + std::sqrt(1 - kKept * kKept) * std::normal_distribution<>(0, 0.05)(random);
      ASSERT_TRUE(history.add(i, trend.loss(static_cast<double>(i) / kRows) + noise));
    }
    const auto forecast = fit(history);
    ASSERT_TRUE(forecast);
    EXPECT_NEAR(forecast->noise(), 0.05, 0.01) << trend.name;
  }
}

TEST(Noise, OfALossThatOnlyScattersAndOfOneThatNeverMoves) {
  SCOPED_TRACE("seed " + std::to_string(kNoiseSeed));
  std::mt19937 random(kNoiseSeed);
  for (const int rows : {3, 60, 5000}) {
    LossHistory flat;
    for (int i = 1; i <= rows; ++i) ASSERT_TRUE(flat.add(i, 2.0));
    EXPECT_EQ(fit(flat)->noise(), 0) << rows;
  }
  LossHistory noisy;
  for (int i = 1; i <= 5000; ++i) ASSERT_TRUE(noisy.add(i, std::normal_distribution<>(1, 0.1)(random)));
  EXPECT_NEAR(fit(noisy)->noise(), 0.1, 0.01);
}

}  // namespace
}  // namespace freshet
