// SPDX-License-Identifier: Apache-2.0
#include "predictor/fit.h"
#include "tests/support/refused.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>

namespace freshet {
namespace {

constexpr unsigned kFitSeed = 7;

struct Rows {
  std::vector<double> iterations;
  std::vector<double> losses;
};

Rows rows_of(std::size_t count, const std::function<double(double)>& loss) {
  Rows rows;
  for (std::size_t i = 1; i <= count; ++i) {
    rows.iterations.push_back(static_cast<double>(i));
    rows.losses.push_back(loss(static_cast<double>(i)));
  }
  return rows;
}

// One family, all rows alike.
FitOptions only(std::string_view name) {
  const std::vector<std::string> names{std::string(name)};
  FitOptions options;
  options.families = *CurveFamilies::standard().subset(names);
  options.recency = 0;
  return options;
}

TEST(Fit, FindsAnExponentialUnderNoise) {
  std::mt19937 random(kFitSeed);
  std::normal_distribution<> noise(0, 0.05);
  const Rows rows = rows_of(2000, [&](double x) { return 2 * std::exp(-0.004 * x) + 0.5 + noise(random); });
  const auto forecast = fit(rows.iterations, rows.losses, only("exp3"));
  ASSERT_TRUE(forecast) << forecast.error().message();
  const auto& p = forecast->chosen().parameters;
  EXPECT_NEAR(p[0], 2, 0.05);
  EXPECT_NEAR(p[1], 0.004, 0.0002);
  EXPECT_NEAR(p[2], 0.5, 0.01);
  EXPECT_NEAR(forecast->noise(), 0.05, 0.025);
}

TEST(Fit, SpikesAndMissingLossesDoNotBendIt) {
  std::mt19937 random(kFitSeed);
  std::normal_distribution<> noise(0, 0.05);
  const Rows rows = rows_of(3000, [&](double x) {
    const double loss = 2 * std::exp(-0.004 * x) + 0.5 + noise(random);
    if (random() % 50 == 0) return loss + 30;
    if (random() % 50 == 0) return random() % 2 == 0 ? std::nan("") : std::numeric_limits<double>::infinity();
    return loss;
  });
  const auto forecast = fit(rows.iterations, rows.losses, only("exp3"));
  ASSERT_TRUE(forecast) << forecast.error().message();
  for (const double x : {1.0, 100.0, 1000.0, 3000.0, 6000.0}) {
    EXPECT_NEAR((*forecast)(x), 2 * std::exp(-0.004 * x) + 0.5, 0.05) << x;
  }
  EXPECT_GT(forecast->skipped(), 20U);
  EXPECT_EQ(forecast->skipped() + forecast->rows(), 3000U);
}

TEST(Fit, MostOfTheFallMayBeYetToCome) {
  // A third of the fall is seen.
  const auto truth = [](double x) { return 2 * std::exp(-x / 900) + 0.4; };
  const Rows rows = rows_of(360, truth);
  const auto forecast = fit(rows.iterations, rows.losses);
  ASSERT_TRUE(forecast);
  for (const double x : {900.0, 1800.0, 4000.0}) EXPECT_NEAR((*forecast)(x), truth(x), 0.05) << x;
}

TEST(Fit, AStraightLineDoesNotFallBelowZero) {
  const Rows rows = rows_of(300, [](double x) { return 4 - x / 100; });
  const auto forecast = fit(rows.iterations, rows.losses, only("lin2"));
  ASSERT_TRUE(forecast);
  EXPECT_NEAR((*forecast)(350), 0.5, 0.01);
  EXPECT_EQ((*forecast)(1e6), 0);
  EXPECT_LT(forecast->chosen()(1e6), 0);
}

TEST(Fit, ConstantLossesFallBackAndSaySo) {
  const Rows rows = rows_of(100, [](double) { return 1.5; });
  const auto forecast = fit(rows.iterations, rows.losses);
  ASSERT_TRUE(forecast);
  EXPECT_TRUE(forecast->is_fallback());
  EXPECT_NE(forecast->note().find("1.5"), std::string::npos);
  EXPECT_EQ(forecast->chosen().name(), "constant");
  EXPECT_EQ((*forecast)(1000), 1.5);
}

TEST(Fit, OneRowIsAConstant) {
  const auto forecast = fit(std::vector<double>{3}, std::vector<double>{0.25});
  ASSERT_TRUE(forecast);
  EXPECT_TRUE(forecast->is_fallback());
  EXPECT_EQ((*forecast)(10), 0.25);
}

TEST(Fit, BadRowsAreNamed) {
  const std::vector<double> losses{3, 2, 1, 0.5};
  for (const auto& [iterations, row] :
       std::vector<std::pair<std::vector<double>, std::string>>{{{1, 2, 2, 3}, "row 3"},
                                                                {{1, 5, 4, 6}, "row 3"},
                                                                {{0, 1, 2, 3}, "row 1"},
                                                                {{1, 2, 3, std::nan("")}, "row 4"}}) {
    EXPECT_TRUE(is_refused(fit(iterations, losses), Code::invalid_argument, row)) << row;
  }
  EXPECT_FALSE(fit(std::vector<double>{1, 2}, losses));
}

TEST(Fit, NoFiniteLossIsAnError) {
  const double nan = std::nan("");
  for (const auto& losses : {std::vector<double>{}, std::vector<double>{nan, nan}}) {
    std::vector<double> iterations;
    for (std::size_t i = 0; i < losses.size(); ++i) iterations.push_back(static_cast<double>(i + 1));
    EXPECT_TRUE(is_refused(fit(iterations, losses), Code::failed_precondition));
  }
}

// A curve that no list has: a damped wave.
class Wave final : public Curve {
 public:
  std::string_view name() const override { return "wave"; }
  std::string_view formula() const override { return "a + b sin(x / 50)"; }
  const std::vector<CurveParameter>& parameters() const override { return parameters_; }
  double value(double x, std::span<const double> p) const override { return p[0] + p[1] * std::sin(x / 50); }
  void gradient(double x, std::span<const double>, std::span<double> out) const override {
    out[0] = 1;
    out[1] = std::sin(x / 50);
  }
  std::vector<std::vector<double>> starts(std::span<const CurvePoint>) const override { return {{0, 1}}; }

 private:
  const std::vector<CurveParameter> parameters_{{.name = "a"}, {.name = "b", .lower = 0, .upper = 10}};
};

TEST(Fit, APluggedInCurveIsChosenWhereItFits) {
  std::mt19937 random(kFitSeed);
  std::normal_distribution<> noise(0, 0.05);
  const Rows rows = rows_of(1500, [&](double x) { return 2 + 0.5 * std::sin(x / 50) + noise(random); });
  for (const Criterion criterion : {Criterion::mse, Criterion::aicc, Criterion::holdout}) {
    FitOptions options;
    options.criterion = criterion;
    options.combine = Combine::best;
    ASSERT_TRUE(options.families.add(std::make_shared<Wave>()));
    const auto forecast = fit(rows.iterations, rows.losses, options);
    ASSERT_TRUE(forecast);
    EXPECT_EQ(forecast->chosen().name(), "wave");
    EXPECT_NEAR((*forecast)(2000), 2 + 0.5 * std::sin(40), 0.05);
  }
}

// A user's curve may be wrong in any way; the others must not suffer.
class Broken final : public Curve {
 public:
  explicit Broken(int how) : how_(how) {}
  std::string_view name() const override { return "broken"; }
  std::string_view formula() const override { return "?"; }
  const std::vector<CurveParameter>& parameters() const override { return parameters_; }
  double value(double x, std::span<const double> p) const override { return how_ == 0 ? std::nan("") : p[0] + x; }
  void gradient(double, std::span<const double>, std::span<double> out) const override {
    out[0] = how_ == 1 ? std::numeric_limits<double>::infinity() : 1;
  }
  std::vector<std::vector<double>> starts(std::span<const CurvePoint>) const override {
    if (how_ == 2) return {};
    if (how_ == 3) return {{}, {1, 2, 3}, {std::nan("")}};
    return {{1}};
  }

 private:
  const int how_;
  const std::vector<CurveParameter> parameters_{{.name = "p"}};
};

TEST(Fit, ABrokenCurveHarmsOnlyItself) {
  const Rows rows = rows_of(300, [](double x) { return 2 * std::exp(-0.01 * x) + 0.5; });
  for (int how = 0; how < 4; ++how) {
    FitOptions options = only("exp3");
    ASSERT_TRUE(options.families.add(std::make_shared<Broken>(how)));
    const auto forecast = fit(rows.iterations, rows.losses, options);
    ASSERT_TRUE(forecast);
    EXPECT_EQ(forecast->chosen().name(), "exp3") << how;
    EXPECT_NEAR((*forecast)(1000), 0.5, 0.01);
    if (how != 1) {
      EXPECT_FALSE(forecast->families()[1].problem.empty()) << how;
    }
  }
}

TEST(Fit, AccuraciesThatRiseAreFitted) {
  std::mt19937 random(kFitSeed);
  std::normal_distribution<> noise(0, 0.02);
  const auto truth = [](double x) { return 0.92 - 0.8 * std::exp(-0.003 * x); };
  // It sinks while the run warms up.
  const Rows rows = rows_of(2000, [&](double x) { return truth(x) - (x < 60 ? 0.5 * x / 60 : 0) + noise(random); });
  FitOptions options;
  options.better = Better::higher;
  const auto forecast = fit(rows.iterations, rows.losses, options);
  ASSERT_TRUE(forecast);
  EXPECT_NEAR((*forecast)(2000), truth(2000), 0.02);
  EXPECT_NEAR((*forecast)(4000), truth(4000), 0.03);
  EXPECT_GT((*forecast)(1000), (*forecast)(300));
}

TEST(Fit, AWarmUpThatRisesIsLeftOut) {
  std::mt19937 random(kFitSeed);
  std::normal_distribution<> noise(0, 0.02);
  const Rows rows = rows_of(2000, [&](double x) {
    return (x < 200 ? 1 + x / 100 : 0.5 + 2.5 * std::exp(-0.004 * (x - 200))) + noise(random);
  });
  const auto forecast = fit(rows.iterations, rows.losses);
  ASSERT_TRUE(forecast);
  EXPECT_NEAR(forecast->from_iteration(), 200, 40);
  EXPECT_NEAR((*forecast)(2500), 0.5, 0.05);
  FitOptions all;
  all.skip_warm_up = false;
  EXPECT_EQ(fit(rows.iterations, rows.losses, all)->from_iteration(), 1);
}

TEST(Fit, OrderOfFamiliesDoesNotChangeTheAnswer) {
  std::mt19937 random(kFitSeed);
  std::normal_distribution<> noise(0, 0.05);
  const Rows rows = rows_of(1500, [&](double x) { return 3 / std::sqrt(x + 5) + 0.2 + noise(random); });
  FitOptions options;
  const auto forward = fit(rows.iterations, rows.losses, options);
  std::vector<std::string> names;
  for (const auto& family : options.families.list()) names.emplace(names.begin(), family->name());
  options.families = *CurveFamilies::standard().subset(names);
  const auto backward = fit(rows.iterations, rows.losses, options);
  ASSERT_TRUE(forward && backward);
  EXPECT_EQ(forward->chosen().name(), backward->chosen().name());
  EXPECT_EQ(forward->chosen().parameters, backward->chosen().parameters);
}

TEST(Fit, AScaledMetricGivesAScaledForecast) {
  std::mt19937 random(kFitSeed);
  std::normal_distribution<> noise(0, 0.05);
  const Rows rows = rows_of(1500, [&](double x) { return 3 / std::sqrt(x + 5) + 0.2 + noise(random); });
  const auto plain = fit(rows.iterations, rows.losses);
  for (const double scale : {1e-6, 1e6}) {
    std::vector<double> scaled = rows.losses;
    for (double& loss : scaled) loss *= scale;
    const auto forecast = fit(rows.iterations, scaled);
    ASSERT_TRUE(forecast && plain);
    for (const double x : {10.0, 700.0, 3000.0}) EXPECT_NEAR((*forecast)(x) / scale, (*plain)(x), 0.02) << scale;
  }
}

TEST(Fit, AWarmStartAgreesWithAColdOne) {
  std::mt19937 random(kFitSeed);
  std::normal_distribution<> noise(0, 0.05);
  LossHistory history;
  for (int i = 1; i <= 1000; ++i) ASSERT_TRUE(history.add(i, 2 * std::exp(-i / 400.0) + 0.5 + noise(random)));
  const auto first = fit(history, only("exp3"));
  ASSERT_TRUE(first);
  for (int i = 1001; i <= 1300; ++i) ASSERT_TRUE(history.add(i, 2 * std::exp(-i / 400.0) + 0.5 + noise(random)));
  FitOptions warm = only("exp3");
  warm.warm_starts = {first->chosen()};
  const auto cold = fit(history, only("exp3")), again = fit(history, warm);
  ASSERT_TRUE(cold && again);
  for (const double x : {1.0, 500.0, 3000.0}) EXPECT_NEAR((*again)(x), (*cold)(x), 1e-3);
}

TEST(Fit, TheBandHoldsTheTruthMostOfTheTime) {
  SCOPED_TRACE("seed " + std::to_string(kFitSeed));
  std::mt19937 random(kFitSeed);
  int inside = 0, looks = 0;
  for (int round = 0; round < 60; ++round) {
    const double floor = std::uniform_real_distribution<>(0.1, 1)(random);
    const double rate = std::uniform_real_distribution<>(0.002, 0.006)(random);
    const auto truth = [&](double x) { return 2 * std::exp(-rate * x) + floor; };
    const Rows rows = rows_of(800, [&](double x) { return truth(x) + std::normal_distribution<>(0, 0.1)(random); });
    const auto forecast = fit(rows.iterations, rows.losses, only("exp3"));
    ASSERT_TRUE(forecast);
    for (const double x : {100.0, 800.0, 1600.0}) {
      const Band band = forecast->band(x, 0.9);
      inside += band.lower <= truth(x) && truth(x) <= band.upper ? 1 : 0;
      ++looks;
    }
  }
  EXPECT_GE(inside, looks * 75 / 100);
  EXPECT_LE(inside, looks * 98 / 100) << "the band is too wide to say anything";
}

TEST(Fit, TheBandStaysPlausibleWhereRowsSayLittle) {
  std::mt19937 random(kFitSeed);
  std::normal_distribution<> noise(0, 0.05);
  for (const std::size_t count : {2U, 5U, 8U, 12U, 20U, 40U}) {
    const Rows rows = rows_of(count, [&](double x) { return 2 * std::exp(-0.01 * x) + 0.5 + noise(random); });
    const auto forecast = fit(rows.iterations, rows.losses);
    ASSERT_TRUE(forecast);
    const auto [least, most] = std::minmax_element(rows.losses.begin(), rows.losses.end());
    const double times = 1 + 400.0 / static_cast<double>(std::max<std::size_t>(1, count - 1));
    for (const double x : {10.0, 100.0, 400.0}) {
      const Band band = forecast->band(x, 0.99);
      EXPECT_GE(band.lower, 0) << count << " rows";
      EXPECT_LE(band.upper, *most + times * (*most - *least)) << count << " rows";
    }
  }
}

TEST(Fit, TheEnsembleIsTheWeightedMeanOfItsFamilies) {
  std::mt19937 random(kFitSeed);
  std::normal_distribution<> noise(0, 0.05);
  const Rows rows = rows_of(1500, [&](double x) { return 3 / std::sqrt(x + 5) + 0.2 + noise(random); });
  FitOptions options;
  options.combine = Combine::ensemble;
  for (const Criterion criterion : {Criterion::mse, Criterion::aicc, Criterion::holdout}) {
    options.criterion = criterion;
    const auto forecast = fit(rows.iterations, rows.losses, options);
    ASSERT_TRUE(forecast);
    double sum = 0, weights = 0, heaviest = 0;
    std::string_view heaviest_name;
    for (const FamilyFit& family : forecast->families()) {
      if (!family.problem.empty()) continue;
      weights += family.weight;
      sum += family.weight * family.curve(1000);
      if (family.weight <= heaviest) continue;
      heaviest = family.weight;
      heaviest_name = family.curve.name();
    }
    EXPECT_NEAR(weights, 1, 1e-9);
    EXPECT_NEAR((*forecast)(1000), sum, 1e-9);
    EXPECT_EQ(heaviest_name, forecast->chosen().name());
  }
}

TEST(Fit, FewRowsLeaveOutFamiliesByName) {
  const auto forecast = fit(std::vector<double>{1, 2, 3, 4}, std::vector<double>{3, 2, 1.5, 1.3});
  ASSERT_TRUE(forecast);
  EXPECT_FALSE(forecast->is_fallback());
  for (const FamilyFit& family : forecast->families()) {
    const std::size_t parameters = family.curve.family->parameters().size();
    EXPECT_EQ(family.problem.empty(), parameters < 4) << family.curve.name();
    if (parameters >= 4) {
      EXPECT_NE(family.problem.find("4 points"), std::string::npos) << family.problem;
    }
  }
  FitOptions four = only("weibull");
  const auto fallback = fit(std::vector<double>{1, 2, 3, 4}, std::vector<double>{3, 2, 1.5, 1.3}, four);
  ASSERT_TRUE(fallback);
  EXPECT_TRUE(fallback->is_fallback());
  EXPECT_NE(fallback->note().find("weibull"), std::string::npos) << fallback->note();
}

TEST(Fit, OptionsOutOfRangeAreNamed) {
  const std::vector<double> iterations{1, 2, 3}, losses{3, 2, 1};
  const auto refused = [&](const char* word, const std::function<void(FitOptions&)>& change) {
    FitOptions options;
    change(options);
    EXPECT_TRUE(is_refused(fit(iterations, losses, options), Code::invalid_argument, word)) << word;
  };
  refused("families", [](FitOptions& options) { options.families = {}; });
  refused("starts", [](FitOptions& options) { options.starts = 0; });
  refused("max_points", [](FitOptions& options) { options.max_points = 7; });
  refused("holdout_fraction", [](FitOptions& options) { options.holdout_fraction = 1; });
  refused("holdout_fraction", [](FitOptions& options) { options.holdout_fraction = std::nan(""); });
  refused("recency", [](FitOptions& options) { options.recency = -1; });
}

}  // namespace
}  // namespace freshet
