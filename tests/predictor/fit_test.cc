#include "predictor/fit.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <random>

namespace freshet {
namespace {

constexpr unsigned kSeed = 7;

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
  std::mt19937 random(kSeed);
  std::normal_distribution<> noise(0, 0.05);
  const Rows rows = rows_of(2000, [&](double x) { return 2 * std::exp(-0.004 * x) + 0.5 + noise(random); });
  const auto forecast = fit(rows.iterations, rows.losses, only("exp3"));
  ASSERT_TRUE(forecast) << forecast.error().message();
  const auto& p = forecast->chosen().parameters;
  EXPECT_NEAR(p[0], 2, 0.05);
  EXPECT_NEAR(p[1], 0.004, 0.0002);
  EXPECT_NEAR(p[2], 0.5, 0.01);
  EXPECT_NEAR(forecast->noise(), 0.05, 0.015);
}

TEST(Fit, SpikesAndMissingLossesDoNotBendIt) {
  std::mt19937 random(kSeed);
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
    const auto forecast = fit(iterations, losses);
    ASSERT_FALSE(forecast) << row;
    EXPECT_EQ(forecast.error().code(), Code::invalid_argument);
    EXPECT_NE(forecast.error().message().find(row), std::string::npos) << forecast.error().message();
  }
  EXPECT_FALSE(fit(std::vector<double>{1, 2}, losses));
}

TEST(Fit, NoFiniteLossIsAnError) {
  const double nan = std::nan("");
  for (const auto& losses : {std::vector<double>{}, std::vector<double>{nan, nan}}) {
    std::vector<double> iterations;
    for (std::size_t i = 0; i < losses.size(); ++i) iterations.push_back(static_cast<double>(i + 1));
    const auto forecast = fit(iterations, losses);
    ASSERT_FALSE(forecast);
    EXPECT_EQ(forecast.error().code(), Code::failed_precondition);
  }
}

}  // namespace
}  // namespace freshet
