// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/schedules/learning_curve.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>
#include <regex>
#include <set>

#include "benchmarks/schedules/synthetic.h"
#include "tests/support/refused.h"

namespace freshet::benchmarks {
namespace {

constexpr std::size_t kTrendRows = 51;

const std::vector<LearningCurve>& recorded() {
  static const auto curves = read_curves(SCHEDULES_DATA);
  EXPECT_TRUE(curves) << (curves ? "" : curves.error().message());
  static const std::vector<LearningCurve> none;
  return curves ? *curves : none;
}

const LearningCurve& recorded(const std::string& name) {
  const auto& curves = recorded();
  const auto found = std::find_if(curves.begin(), curves.end(), [&](const auto& curve) { return curve.name == name; });
  EXPECT_NE(found, curves.end()) << name;
  return found == curves.end() ? curves.at(0) : *found;
}

double mean(const std::vector<double>& values, std::size_t first, std::size_t count) {
  const auto begin = values.begin() + static_cast<std::ptrdiff_t>(first);
  return std::accumulate(begin, begin + static_cast<std::ptrdiff_t>(count), 0.0) / static_cast<double>(count);
}

class CurveFile : public testing::Test {
 protected:
  CurveFile() {
    std::string pattern = std::filesystem::temp_directory_path() / "freshet-curve-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
  }
  ~CurveFile() override { std::filesystem::remove_all(folder_); }

  Result<LearningCurve> read(const std::string& text) {
    std::ofstream(folder_ / "some.csv") << text;
    return read_curve(folder_ / "some.csv");
  }

  std::filesystem::path folder_;
};

TEST_F(CurveFile, IsReadAsItStands) {
  const auto curve = read("step,loss,eval_loss\n1,2.5,2.25\n2,nan,1e-3\n");
  ASSERT_TRUE(curve) << curve.error().message();
  EXPECT_EQ(curve->name, "some");
  EXPECT_EQ(curve->loss.at(0), 2.5);
  EXPECT_TRUE(std::isnan(curve->loss.at(1)));
  EXPECT_EQ(curve->eval_loss, (std::vector<double>{2.25, 1e-3}));
}

TEST_F(CurveFile, NamesTheLineThatIsWrong) {
  const std::string header = "step,loss,eval_loss\n1,2,2\n";
  for (const char* line : {"2,1", "2,1,1,1", "2,1,x", "2,1,nan", "2,1,inf", "3,1,1", "2,1,1 ", "", "2;1;1"}) {
    EXPECT_TRUE(is_refused(read(header + line + "\n"), Code::invalid_argument, "line 3")) << line;
  }
  EXPECT_FALSE(read("loss,step\n1,2\n"));
  EXPECT_EQ(read_curve(folder_ / "other.csv").error().code(), Code::not_found);
  std::filesystem::remove(folder_ / "some.csv");
  EXPECT_EQ(read_curves(folder_).error().code(), Code::not_found);
}

TEST(CentredMean, IsTheMeanOfWhatLiesWithinReach) {
  constexpr std::uint64_t kSeed = 11;
  std::mt19937_64 random(kSeed);
  std::uniform_real_distribution<double> uniform(-3, 9);
  for (const std::size_t count : {1u, 2u, 7u, 50u, 51u, 52u, 300u}) {
    std::vector<double> values(count);
    for (double& value : values) value = uniform(random);
    for (const std::size_t width : {1u, 3u, 51u}) {
      const std::vector<double> means = centred_mean(values, width);
      ASSERT_EQ(means.size(), count);
      for (std::size_t i = 0; i < count; ++i) {
        long double sum = 0;
        int within = 0;
        for (std::size_t j = 0; j < count; ++j) {
          if (2 * (i > j ? i - j : j - i) >= width) continue;
          sum += static_cast<long double>(values[j]);
          ++within;
        }
        EXPECT_NEAR(means[i], static_cast<double>(sum / within), 1e-12) << i << " of " << count << ", width " << width;
      }
    }
  }
}

TEST(TrendOf, SmearsNoJump) {
  std::mt19937_64 random(12);
  std::normal_distribution<double> normal;
  std::vector<double> values;
  for (int row = 0; row < 400; ++row) values.push_back((row < 200 ? 1.0 : 2.0) - 1e-4 * row + 0.01 * normal(random));
  const std::vector<double> trend = trend_of(values, kTrendRows);
  for (int row = 0; row < 400; ++row) {
    const double expected = (row < 200 ? 1.0 : 2.0) - 1e-4 * row;
    EXPECT_NEAR(trend[static_cast<std::size_t>(row)], expected, 0.01) << row;
  }
}

TEST(TrendOf, FindsNoJumpInWhatFallsOrRisesSlowly) {
  std::vector<double> falls, rises;
  for (int row = 0; row < 1000; ++row) {
    falls.push_back(std::exp(-row / 20.0));
    rises.push_back(1 + row / 100.0);
  }
  EXPECT_EQ(trend_of(falls, kTrendRows), centred_mean(falls, kTrendRows));
  EXPECT_EQ(trend_of(rises, kTrendRows), centred_mean(rises, kTrendRows));
}

/// Without a jump it is the plain mean, also of much noise and of single rows far away.
TEST(TrendOf, LeansToNoLuckyRow) {
  std::mt19937_64 random(13);
  std::student_t_distribution<double> heavy(3);
  std::vector<double> values;
  for (int row = 0; row < 1600; ++row) values.push_back(1 + 0.1 * heavy(random));
  EXPECT_EQ(trend_of(values, kTrendRows), centred_mean(values, kTrendRows));
}

TEST(RecordedCurves, AreManyAndLongAndFinite) {
  EXPECT_GE(recorded().size(), 8u);
  for (const LearningCurve& curve : recorded()) {
    EXPECT_GE(curve.loss.size(), 2000u) << curve.name;
    EXPECT_LE(curve.loss.size(), 8000u) << curve.name;
    EXPECT_EQ(curve.loss.size(), curve.eval_loss.size()) << curve.name;
    const auto bad = [](double loss) { return !(loss > 0 && loss < 1e6); };
    EXPECT_EQ(std::count_if(curve.loss.begin(), curve.loss.end(), bad), 0) << curve.name;
    EXPECT_EQ(std::count_if(curve.eval_loss.begin(), curve.eval_loss.end(), bad), 0) << curve.name;
    // A real run's batches differ; a curve that was made up or written twice would not.
    EXPECT_GT(std::set<double>(curve.eval_loss.begin(), curve.eval_loss.end()).size(), curve.eval_loss.size() / 3);
  }
}

TEST(RecordedCurves, AreThoseThatTheReadmeHasACommandFor) {
  std::ifstream file(std::string(SCHEDULES_DATA) + "/README.md");
  const std::regex command("    ([a-z_0-9]+): record_(text|classic) .*--steps ([0-9]+) .*--seed [0-9]+.*");
  std::map<std::string, std::size_t> rows;
  for (std::string line; std::getline(file, line);) {
    std::smatch match;
    if (std::regex_match(line, match, command)) rows[match[1]] = std::stoul(match[3]);
  }
  std::map<std::string, std::size_t> expected;
  for (const LearningCurve& curve : recorded()) expected[curve.name] = curve.loss.size();
  EXPECT_EQ(rows, expected);
}

/// What their names promise: the held-out loss rises well above its best, the training loss goes on falling.
TEST(RecordedCurves, OverfitWhereTheySaySo) {
  for (const char* name : {"digits_overfit", "text_overfit"}) {
    const LearningCurve& curve = recorded(name);
    const std::vector<double> trend = trend_of(curve.eval_loss, kTrendRows);
    EXPECT_GT(trend.back(), 1.15 * *std::min_element(trend.begin(), trend.end())) << name;
    const std::size_t tenth = curve.loss.size() / 10;
    EXPECT_LT(mean(curve.loss, 9 * tenth, tenth), 0.8 * mean(curve.loss, 4 * tenth, tenth)) << name;
  }
}

TEST(RecordedCurves, DivergeAndRecoverWhereTheySaySo) {
  for (const char* name : {"digits_diverge", "text_diverge"}) {
    const std::vector<double> trend = trend_of(recorded(name).eval_loss, kTrendRows);
    const double before = trend.at(1150);
    EXPECT_GT(*std::max_element(trend.begin() + 1150, trend.begin() + 1600), 1.25 * before) << name;
    EXPECT_LT(trend.back(), before) << name;
  }
}

TEST(RecordedCurves, RiseFirstWhereTheySaySo) {
  const std::vector<double> trend = trend_of(recorded("text_rewarm").eval_loss, kTrendRows);
  const auto peak = std::max_element(trend.begin(), trend.end());
  EXPECT_GT(*peak, 1.03 * trend.front());
  EXPECT_GT(peak - trend.begin(), 300);
  EXPECT_LT(trend.back(), trend.front());
}

TEST(SyntheticCurves, AreTheSameEachTime) {
  const auto first = synthetic_curves();
  const auto second = synthetic_curves();
  ASSERT_EQ(first.size(), 6u);
  for (std::size_t i = 0; i < first.size(); ++i) {
    EXPECT_EQ(first[i].loss, second[i].loss);
    EXPECT_EQ(first[i].eval_loss, second[i].eval_loss);
    EXPECT_GT(*std::min_element(first[i].eval_loss.begin(), first[i].eval_loss.end()), 0) << first[i].name;
  }
}

}  // namespace
}  // namespace freshet::benchmarks
