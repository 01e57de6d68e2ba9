// SPDX-License-Identifier: Apache-2.0
#include "predictor/cumulative_loss.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "predictor/exact_sum.h"

namespace freshet {
namespace {

/// Steps of 10, stalls of 3, deliveries of 4, a request every 7 (at 7, 14, … 70); rows 2 to 6.
ReplayClock small_clock() {
  return *ReplayClock::make({.step_ns = 10, .stall_ns = 3, .delivery_ns = 4, .infer_ns = 7},
                            {.warmup = 2, .rows = 6, .requests = 10});
}

TEST(CumulativeLoss, CountsRequestsAsOneDoesByHand) {
  const std::vector<double> costs{16, 8, 4, 2, 1};
  EXPECT_EQ(*cumulative_loss(small_clock(), costs, {}), 160);
  // Row 3 is served from 17 on: requests at 7 and 14 come before.
  EXPECT_EQ(*cumulative_loss(small_clock(), costs, PublishRows{3}), 2 * 16 + 8 * 8);
  // Row 6 after that from 40 + 6 + 4 = 50 on: requests 3 to 7 are row 3's.
  EXPECT_EQ(*cumulative_loss(small_clock(), costs, PublishRows{3, 6}), 2 * 16 + 5 * 8 + 3 * 1);
}

TEST(CumulativeLoss, RefusesRowsThatAreOutOfPlace) {
  const std::vector<double> costs{16, 8, 4, 2, 1};
  for (const PublishRows& rows : {PublishRows{2}, PublishRows{7}, PublishRows{4, 4}, PublishRows{5, 3}}) {
    EXPECT_FALSE(cumulative_loss(small_clock(), costs, rows));
  }
  EXPECT_FALSE(cumulative_loss(small_clock(), std::vector<double>{1, 2}, {}));
}

TEST(CumulativeLoss, RefusesSumsThatAreNotFinite) {
  EXPECT_FALSE(cumulative_loss(small_clock(), std::vector<double>{1e308, 0, 0, 0, 0}, {}));
  EXPECT_FALSE(cumulative_loss(small_clock(), std::vector<double>{1, std::nan(""), 0, 0, 0}, PublishRows{3}));
}

TEST(ExactSum, IsTheDoubleNearestToTheTrueSum) {
  ExactSum sum;
  for (const double value : {1e100, 1.0, -1e100, 1e-20}) sum.add(value);
  EXPECT_EQ(sum.value(), 1.0);
  ExactSum tenths;
  tenths.add_times(0.1, 10);
  EXPECT_EQ(tenths.value(), 1.0);
  // 0.1 is a little above a tenth: 2^53 times that.
  ExactSum many;
  many.add_times(0.1, std::int64_t{1} << 53);
  EXPECT_EQ(many.value(), 0.1 * 9007199254740992.0);
  ExactSum half;  // Half a unit and a trace more rounds up, a trace less rounds down.
  for (const double value : {1.0, 0x1p-53, 0x1p-120}) half.add(value);
  EXPECT_EQ(half.value(), 1.0 + 0x1p-52);
  half.add(-0x1p-119);
  EXPECT_EQ(half.value(), 1.0);
}

TEST(ExactSum, KeepsWhatIsNotFinite) {
  ExactSum sum;
  sum.add(std::numeric_limits<double>::infinity());
  sum.add(1);
  EXPECT_TRUE(std::isinf(sum.value()));
  sum.add(-std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(sum.value()));
}

}  // namespace
}  // namespace freshet
