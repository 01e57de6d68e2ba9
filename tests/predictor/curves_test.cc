// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <random>

#include "predictor/curves/curve.h"
#include "tests/support/refused.h"

namespace freshet {
namespace {

constexpr unsigned kCurvesSeed = 20240812;

// Parameters within their bounds: logarithmic ones over the middle of their range, where formulas neither vanish nor
// explode, free ones of a loss's size.
std::vector<double> random_parameters(const Curve& family, std::mt19937& random) {
  std::vector<double> values;
  for (const CurveParameter& parameter : family.parameters()) {
    if (parameter.scale == ParameterScale::logarithmic) {
      const double lower = std::max(std::log(parameter.lower), std::log(1e-4));
      const double upper = std::min(std::log(parameter.upper), std::log(3.0));
      values.push_back(std::exp(std::uniform_real_distribution<>(lower, upper)(random)));
    } else {
      const double lower = std::max(parameter.lower, -3.0);
      const double upper = std::min(parameter.upper, 3.0);
      values.push_back(std::uniform_real_distribution<>(lower, upper)(random));
    }
  }
  return values;
}

TEST(Curves, GradientsAgreeWithCentralDifferences) {
  std::mt19937 random(kCurvesSeed);
  SCOPED_TRACE("seed " + std::to_string(kCurvesSeed));
  for (const auto& family : CurveFamilies::standard().list()) {
    SCOPED_TRACE(std::string(family->name()));
    for (int round = 0; round < 300; ++round) {
      const std::vector<double> parameters = random_parameters(*family, random);
      const double x = std::exp(std::uniform_real_distribution<>(0, std::log(1e4))(random));
      std::array<double, kMaxParameters> gradient{};
      family->gradient(x, parameters, {gradient.data(), parameters.size()});
      for (std::size_t k = 0; k < parameters.size(); ++k) {
        const double step = 1e-5 * std::max(std::abs(parameters[k]), 1e-3);
        auto below = parameters, above = parameters;
        below[k] -= step;
        above[k] += step;
        const double low = family->value(x, below), high = family->value(x, above);
        const double difference = (high - low) / (above[k] - below[k]);
        // Rounding of the two values over the step, and the third derivative's share.
        const double rounding = 1e-15 * (std::abs(low) + std::abs(high)) / step;
        EXPECT_NEAR(gradient[k], difference, 10 * rounding + 1e-5 * std::abs(difference) + 1e-12)
            << family->parameters()[k].name << " at x " << x;
      }
    }
  }
}

TEST(Curves, StartsAreFiniteAndOfTheRightLength) {
  std::mt19937 random(kCurvesSeed);
  for (const auto& family : CurveFamilies::standard().list()) {
    SCOPED_TRACE(std::string(family->name()));
    for (const std::size_t count : {1U, 2U, 5U, 50U}) {
      std::vector<CurvePoint> points;
      for (std::size_t i = 0; i < count; ++i) {
        const double x = 1 + static_cast<double>(3 * i);
        points.push_back({.x = x, .y = 0.2 + 2 / std::sqrt(x) + std::normal_distribution<>(0, 0.01)(random)});
      }
      for (const auto& start : family->starts(points)) {
        ASSERT_EQ(start.size(), family->parameters().size());
        EXPECT_TRUE(std::all_of(start.begin(), start.end(), [](double value) { return std::isfinite(value); }))
            << count << " points";
      }
    }
  }
}

class Named final : public Curve {
 public:
  Named(std::string name, std::vector<CurveParameter> parameters)
      : name_(std::move(name)), parameters_(std::move(parameters)) {}
  std::string_view name() const override { return name_; }
  std::string_view formula() const override { return "p"; }
  const std::vector<CurveParameter>& parameters() const override { return parameters_; }
  double value(double, std::span<const double> p) const override { return p[0]; }
  void gradient(double, std::span<const double>, std::span<double> out) const override { out[0] = 1; }
  std::vector<std::vector<double>> starts(std::span<const CurvePoint>) const override { return {{0}}; }

 private:
  const std::string name_;
  const std::vector<CurveParameter> parameters_;
};

TEST(CurveFamilies, RefusesWhatBreaksTheRulesByName) {
  CurveFamilies families = CurveFamilies::standard();
  const std::size_t before = families.list().size();
  const auto refused = [&](const char* name, std::vector<CurveParameter> parameters, Code code) {
    const auto added = families.add(std::make_shared<Named>(name, std::move(parameters)));
    ASSERT_FALSE(added) << name;
    EXPECT_EQ(added.error().code(), code);
    EXPECT_NE(added.error().message().find(name), std::string::npos);
  };
  refused("", {{.name = "p"}}, Code::invalid_argument);
  refused("exp3", {{.name = "p"}}, Code::already_exists);
  refused("mine", {}, Code::invalid_argument);
  refused("mine", std::vector<CurveParameter>(kMaxParameters + 1), Code::invalid_argument);
  refused("mine", {{.name = "p", .lower = 2, .upper = 1}}, Code::invalid_argument);
  refused("mine", {{.name = "p", .lower = std::nan("")}}, Code::invalid_argument);
  refused("mine", {{.name = "p", .lower = 0, .upper = 1, .scale = ParameterScale::logarithmic}},
          Code::invalid_argument);
  EXPECT_FALSE(families.add(nullptr));
  EXPECT_EQ(families.list().size(), before);
  EXPECT_TRUE(families.add(std::make_shared<Named>("mine", std::vector<CurveParameter>{{.name = "p"}})));
  EXPECT_TRUE(families.find("mine"));
}

TEST(CurveFamilies, SubsetKeepsTheOrderAndNamesTheUnknown) {
  const CurveFamilies families = CurveFamilies::standard();
  const std::vector<std::string> names{"lin2", "exp3"};
  const auto some = families.subset(names);
  ASSERT_TRUE(some);
  ASSERT_EQ(some->list().size(), 2U);
  EXPECT_EQ(some->list()[0]->name(), "lin2");
  const std::vector<std::string> wrong{"exp3", "exp33"};
  EXPECT_TRUE(is_refused(families.subset(wrong), Code::not_found, "exp33"));
}

}  // namespace
}  // namespace freshet
