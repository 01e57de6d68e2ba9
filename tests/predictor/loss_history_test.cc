// SPDX-License-Identifier: Apache-2.0
#include "predictor/loss_history.h"
#include "tests/support/refused.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace freshet {
namespace {

constexpr unsigned kHistorySeed = 11;

double total_weight(const LossHistory& history) {
  double sum = 0;
  for (const CurvePoint& point : history.points()) sum += point.weight;
  return sum;
}

bool same(const LossHistory& a, const LossHistory& b) {
  if (a.points().size() != b.points().size() || a.spikes() != b.spikes()) return false;
  for (std::size_t i = 0; i < a.points().size(); ++i) {
    const CurvePoint &p = a.points()[i], &q = b.points()[i];
    if (p.x != q.x || p.y != q.y || p.weight != q.weight) return false;
  }
  return true;
}

TEST(LossHistory, StaysSmallAndLosesNoRow) {
  LossHistory history;
  for (int i = 1; i <= 2'000'000; ++i) {
    ASSERT_TRUE(history.add(i, 1 + 5 / std::sqrt(i)));
    if (i % 1000 != 0) continue;
    ASSERT_LE(history.points().size(), 2 * LossHistory::kBins);
    ASSERT_LE(history.points().capacity(), 4 * LossHistory::kBins);
    ASSERT_EQ(total_weight(history), i);
  }
  double last = 0;
  for (const CurvePoint& point : history.points()) {
    ASSERT_GT(point.x, last);
    last = point.x;
    // Means of a convex curve over a bin lie a little above the curve at the bin's middle.
    ASSERT_NEAR(point.y, 1 + 5 / std::sqrt(point.x), 0.15) << point.x;
  }
  EXPECT_GT(history.points().size(), LossHistory::kBins / 2);
}

TEST(LossHistory, KeepsTheSteepBeginningOfALongRun) {
  LossHistory history;
  for (int i = 1; i <= 1'000'000; ++i) ASSERT_TRUE(history.add(i, std::exp(-i / 1000.0)));
  std::size_t early = 0;
  for (const CurvePoint& point : history.points()) early += point.x <= 2000 ? 1 : 0;
  EXPECT_GE(early, 20U) << "bins in the part where the loss falls";
}

TEST(LossHistory, FewRowsAreKeptAsTheyCame) {
  std::mt19937 random(kHistorySeed);
  LossHistory history;
  std::vector<double> losses;
  for (int i = 1; i <= static_cast<int>(2 * LossHistory::kBins); ++i) {
    losses.push_back(std::normal_distribution<>(1, 0.1)(random));
    ASSERT_TRUE(history.add(3 * i, losses.back()));
  }
  ASSERT_EQ(history.points().size(), losses.size());
  for (std::size_t i = 0; i < losses.size(); ++i) {
    EXPECT_EQ(history.points()[i].x, static_cast<double>(3 * (i + 1)));
    EXPECT_EQ(history.points()[i].y, losses[i]);
  }
}

TEST(LossHistory, FutureRowsChangeNothingOfThePast) {
  // Two runs that agree on 5000 rows: after those their histories are equal, whatever comes later.
  std::mt19937 random(kHistorySeed);
  LossHistory one, two;
  LossHistory one_then, two_then;
  for (int i = 1; i <= 9000; ++i) {
    const double loss = 1 / std::sqrt(i) + std::normal_distribution<>(0, 0.02)(random);
    ASSERT_TRUE(one.add(i, loss));
    ASSERT_TRUE(two.add(i, i <= 5000 ? loss : std::nan("")));
    if (i != 5000) continue;
    one_then = one;
    two_then = two;
  }
  EXPECT_TRUE(same(one_then, two_then));
  EXPECT_FALSE(same(one, two));
}

TEST(LossHistory, SpikesDoNotBendBins) {
  std::mt19937 random(kHistorySeed);
  LossHistory history;
  std::uint64_t spikes = 0;
  for (int i = 1; i <= 50'000; ++i) {
    const bool spike = random() % 100 == 0;
    spikes += spike ? 1 : 0;
    ASSERT_TRUE(history.add(i, 2 + std::normal_distribution<>(0, 0.1)(random) + (spike ? 1000 : 0)));
  }
  for (const CurvePoint& point : history.points()) {
    if (point.weight > 1) {
      EXPECT_NEAR(point.y, 2, 0.5) << point.x;
    }
  }
  EXPECT_GE(history.spikes(), spikes * 9 / 10);
  EXPECT_LE(history.spikes(), spikes + 50);
}

TEST(LossHistory, AJumpThatStaysIsNoSpike) {
  LossHistory history;
  for (int i = 1; i <= 10'000; ++i) ASSERT_TRUE(history.add(i, (i <= 5000 ? 1 : 9) + 0.001 * (i % 7)));
  EXPECT_EQ(history.spikes(), 0U);
  EXPECT_NEAR(history.points().back().y, 9, 0.1);
}

TEST(LossHistory, SkipsAndCountsWhatIsNotANumber) {
  LossHistory history;
  const double infinity = std::numeric_limits<double>::infinity();
  int iteration = 0;
  for (const double loss : {1.0, std::nan(""), infinity, -infinity, 1e300, -1e300, 2.0}) {
    EXPECT_TRUE(history.add(++iteration, loss));
  }
  EXPECT_EQ(history.rows(), 2U);
  EXPECT_EQ(history.skipped(), 5U);
  EXPECT_EQ(history.last_iteration(), 7);
}

TEST(LossHistory, RefusesIterationsThatDoNotGrow) {
  LossHistory history;
  ASSERT_TRUE(history.add(5, 1));
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double iteration : {5.0, 4.0, 0.0, 0.5, -1.0, std::nan(""), infinity, 1e300}) {
    EXPECT_TRUE(is_refused(history.add(iteration, 1), Code::invalid_argument, "iteration")) << iteration;
  }
  ASSERT_TRUE(history.add(6, std::nan("")));
  EXPECT_FALSE(history.add(6, 1)) << "a skipped row's iteration is used up";
  EXPECT_EQ(history.rows(), 1U);
}

}  // namespace
}  // namespace freshet
