// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

#include "predictor/fit.h"

/// Curves of known parameters, drawn with noise and spikes, are found again. The formulas are written out here a second
/// time.

namespace freshet {
namespace {

constexpr unsigned kRecoverySeed = 20250301;

struct Known {
  const char* family;
  std::function<double(double)> curve;
};

std::vector<Known> known_curves() {
  return {{"constant", [](double) { return 0.7; }},
          {"exp2", [](double x) { return 3 * std::exp(-x / 900); }},
          {"exp3", [](double x) { return 2 * std::exp(-x / 300) + 0.4; }},
          {"lin2", [](double x) { return 4 - x / 1000; }},
          {"expd3", [](double x) { return 0.3 - (0.3 - 2.5) * std::exp(-x / 500); }},
          {"pow3", [](double x) { return 3 * std::pow(x, -0.4) + 0.2; }},
          {"pow4", [](double x) { return 40 * std::pow(x + 60, -0.8) + 0.1; }},
          {"logpower", [](double x) { return 2.5 / (1 + std::pow(x / std::exp(5.0), 1.3)); }},
          {"ilog2", [](double x) { return 3 / std::log(x + 1) + 0.1; }},
          {"janoschek", [](double x) { return 0.5 - (0.5 - 2.5) * std::exp(-0.02 * std::pow(x, 0.7)); }},
          {"mmf", [](double x) { return 0.3 - (0.3 - 2.3) / (1 + std::pow(0.004 * x, 1.5)); }},
          {"vapour", [](double x) { return std::exp(1.5 - 0.8 / x - 0.3 * std::log(x)); }},
          {"weibull", [](double x) { return 0.4 - (0.4 - 2.4) * std::exp(-std::pow(0.005 * x, 0.8)); }}};
}

FitOptions only(const char* name) {
  const std::vector<std::string> names{name};
  FitOptions options;
  options.families = *CurveFamilies::standard().subset(names);
  options.recency = 0;
  return options;
}

// The largest distance of forecast and truth, over what was seen and twice as far.
double worst(const Forecast& forecast, const std::function<double(double)>& truth, double last) {
  double worst = 0;
  for (double x = 1; x <= 2 * last; x = std::max(x + 1, x * 1.02)) {
    worst = std::max(worst, std::abs(forecast(x) - truth(x)));
  }
  return worst;
}

TEST(Recovery, EveryFamilyIsKnown) {
  std::vector<std::string> known, standard;
  for (const Known& each : known_curves()) known.emplace_back(each.family);
  for (const auto& family : CurveFamilies::standard().list()) standard.emplace_back(family->name());
  std::sort(known.begin(), known.end());
  std::sort(standard.begin(), standard.end());
  EXPECT_EQ(known, standard);
}

TEST(Recovery, WithoutNoiseFormulasAreFoundAgain) {
  for (const Known& known : known_curves()) {
    const char* const family = known.family;
    const auto& curve = known.curve;
    if (std::string_view(family) == "constant") continue;
    std::vector<double> iterations, losses;
    // Few enough that no rows are merged.
    for (int i = 1; i <= 120; ++i) {
      iterations.push_back(1 + 25 * (i - 1));
      losses.push_back(curve(iterations.back()));
    }
    const auto forecast = fit(iterations, losses, only(family));
    ASSERT_TRUE(forecast) << family;
    EXPECT_FALSE(forecast->is_fallback()) << family << ": " << forecast->note();
    EXPECT_LT(worst(
                  *forecast, [&](double x) { return std::max(0.0, curve(x)); }, 3000),
              2e-3)
        << family;
  }
}

TEST(Recovery, UnderNoiseAndSpikes) {
  SCOPED_TRACE("seed " + std::to_string(kRecoverySeed));
  std::mt19937 random(kRecoverySeed);
  constexpr int kRows = 3000;
  for (const Known& known : known_curves()) {
    const char* const family = known.family;
    const auto& curve = known.curve;
    for (int round = 0; round < 5; ++round) {
      LossHistory history;
      for (int i = 1; i <= kRows; ++i) {
        const double noise = std::normal_distribution<>(0, 0.05)(random);
        const double spike = random() % 80 == 0 ? (random() % 2 == 0 ? 20 : -3) : 0;
        ASSERT_TRUE(history.add(i, curve(i) + noise + spike));
      }
      const auto forecast = fit(history, only(family));
      ASSERT_TRUE(forecast) << family;
      EXPECT_NEAR(forecast->noise(), 0.05, 0.025) << family;
      double inside = 0;
      for (double x = 30; x <= kRows; x *= 1.1) inside = std::max(inside, std::abs((*forecast)(x)-curve(x)));
      EXPECT_LT(inside, 0.03) << family << " where it was seen";
      EXPECT_LT(std::abs((*forecast)(2 * kRows) - std::max(0.0, curve(2 * kRows))), 0.15) << family << " twice as far";
    }
  }
}

TEST(Recovery, ParametersStayInTheirBounds) {
  std::mt19937 random(kRecoverySeed);
  SCOPED_TRACE("seed " + std::to_string(kRecoverySeed));
  // Losses that no family was made for.
  const std::vector<std::function<double(double)>> odd{[&](double) { return std::normal_distribution<>(0, 1)(random); },
                                                       [&](double x) { return x < 50 ? 1e6 : 1e-6 * x; },
                                                       [&](double x) { return std::exp(x / 20); },
                                                       [&](double x) { return x == 7 ? 1e90 : -1.0; },
                                                       [&](double x) { return std::sin(x); },
                                                       [&](double x) { return -std::pow(x, 3); }};
  for (const auto& loss : odd) {
    for (const std::size_t rows : {2U, 3U, 4U, 5U, 6U, 20U, 100U, 2000U}) {
      std::vector<double> iterations, losses;
      for (std::size_t i = 1; i <= rows; ++i) {
        iterations.push_back(static_cast<double>(i));
        losses.push_back(loss(iterations.back()));
      }
      FitOptions options;
      options.families = CurveFamilies::standard();
      const auto forecast = fit(iterations, losses, options);
      ASSERT_TRUE(forecast);
      double weights = 0;
      for (const FamilyFit& family : forecast->families()) {
        weights += family.weight;
        ASSERT_EQ(family.problem.empty(), !family.curve.parameters.empty());
        for (std::size_t k = 0; k < family.curve.parameters.size(); ++k) {
          const CurveParameter& parameter = family.curve.family->parameters()[k];
          EXPECT_GE(family.curve.parameters[k], parameter.lower) << family.curve.name() << " " << parameter.name;
          EXPECT_LE(family.curve.parameters[k], parameter.upper) << family.curve.name() << " " << parameter.name;
        }
      }
      if (!forecast->is_fallback()) {
        EXPECT_NEAR(weights, 1, 1e-9);
      }
      for (const double x : {-5.0, 0.0, 1.0, 17.0, 1e4, 1e9, 1e15}) {
        const Band band = forecast->band(x);
        EXPECT_TRUE(std::isfinite((*forecast)(x))) << x;
        EXPECT_TRUE(std::isfinite(band.lower) && std::isfinite(band.upper)) << x;
        EXPECT_LE(band.lower, band.middle);
        EXPECT_LE(band.middle, band.upper);
      }
    }
  }
}

}  // namespace
}  // namespace freshet
