// SPDX-License-Identifier: Apache-2.0
/// LossTrend::noise(), by which `online` decides, against runs whose noise is known.

#include "scheduler/online/loss_trend.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <vector>

namespace freshet {
namespace {

constexpr unsigned kTrendSeed = 20260731;

TEST(LossTrendNoise, IsTheStandardDeviationOfARow) {
  SCOPED_TRACE("seed " + std::to_string(kTrendSeed));
  std::mt19937 random(kTrendSeed);
  const std::vector<std::function<double(double)>> trends = {
      [](double t) { return 0.2 + 0.8 * std::pow(1 + 200 * t, -0.5); },
      [](double t) { return 0.3 + 0.7 * std::exp(-6 * t); }, [](double t) { return 1 - 0.6 * t; },
      [](double t) { return 1 / std::log(2.718281828 + 50 * t); }};
  const std::vector<std::function<double()>> kinds = {
      [&] { return std::normal_distribution<>(0, 1)(random); },
      [&] { return std::uniform_real_distribution<>(-std::sqrt(3.0), std::sqrt(3.0))(random); },
      [&] {
        const double size = std::exponential_distribution<>(std::sqrt(2.0))(random);
        return random() % 2 == 0 ? size : -size;
      }};
  constexpr int kRows = 3000;
  for (std::size_t trend = 0; trend < trends.size(); ++trend) {
    for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
      for (const double level : {0.005, 0.03, 0.15}) {
        LossTrend found;
        std::vector<double> ratios;
        for (int i = 1; i <= kRows; ++i) {
          found.push(trends[trend](static_cast<double>(i) / kRows) + level * kinds[kind]());
          if (i > 500) ratios.push_back(found.noise() / level);
        }
        std::ranges::nth_element(ratios, ratios.begin() + static_cast<std::ptrdiff_t>(ratios.size() / 2));
        const double median = ratios[ratios.size() / 2];
        EXPECT_GT(median, 0.8) << "trend " << trend << ", kind " << kind << ", " << level;
        EXPECT_LT(median, 1.2) << "trend " << trend << ", kind " << kind << ", " << level;
      }
    }
  }
}

}  // namespace
}  // namespace freshet
