// SPDX-License-Identifier: Apache-2.0
#include "predictor/timing.h"

#include <gtest/gtest.h>

#include <limits>

namespace freshet {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

TEST(Timing, MillisecondsBecomeTheNearestNanosecond) {
  const auto ns = [](std::string_view text) { return nanoseconds_of_ms(text).value_or(-99); };
  EXPECT_EQ(ns("1"), 1'000'000);
  EXPECT_EQ(ns("12.5"), 12'500'000);
  EXPECT_EQ(ns("0.0000004"), 0);
  EXPECT_EQ(ns("0.00000051"), 1);
  EXPECT_EQ(ns("0.1234567"), 123'457);
  EXPECT_EQ(ns("1e3"), 1'000'000'000);
  EXPECT_EQ(ns("+2.50E-5"), 25);
  EXPECT_EQ(ns("007.25"), 7'250'000);
  EXPECT_EQ(ns(".5"), 500'000);
  EXPECT_EQ(ns("5."), 5'000'000);
  EXPECT_EQ(ns("0e999999999"), 0);
  EXPECT_EQ(ns("1e-999999999"), 0);
  EXPECT_EQ(ns("-3.5"), -3'500'000);
  EXPECT_EQ(ns("123456789012.345678"), 123'456'789'012'345'678);
}

TEST(Timing, HalvesGoToTheEvenNanosecond) {
  EXPECT_EQ(*nanoseconds_of_ms("0.0000005"), 0);
  EXPECT_EQ(*nanoseconds_of_ms("0.0000015"), 2);
  EXPECT_EQ(*nanoseconds_of_ms("0.0000025"), 2);
  EXPECT_EQ(*nanoseconds_of_ms("0.00000250000000000000000000000001"), 3);
}

TEST(Timing, JunkIsNotANumberOfMilliseconds) {
  for (const char* text : {"", "-", ".", "e3", "1e", "1e+", "1.2.3", "0x10", "nan", "inf", "1 ", " 1", "1,5",
                           "1e99999999999", "12345678901234567890", "1e300"}) {
    EXPECT_FALSE(nanoseconds_of_ms(text)) << text;
  }
}

TEST(Timing, MillisecondsForPeopleAreTheNearestDouble) {
  EXPECT_EQ(ms_of_nanoseconds(10'500'000), 10.5);
  EXPECT_EQ(ms_of_nanoseconds(1), 1e-6);
  EXPECT_EQ(ms_of_nanoseconds(123'457), 0.123457);
}

TEST(ReplayClock, CountsARequestAtTheVeryTimeForTheNewVersion) {
  const auto clock = ReplayClock::make({.step_ns = 10, .stall_ns = 3, .delivery_ns = 4, .infer_ns = 7},
                                       {.warmup = 2, .rows = 9, .requests = 10});
  ASSERT_TRUE(clock);
  EXPECT_EQ(clock->served_at(5, 1), 3 * 10 + 3 + 4);
  EXPECT_EQ(clock->served_at(9, 3), 7 * 10 + 9 + 4);
  EXPECT_EQ(clock->requests_before(0), 0);
  EXPECT_EQ(clock->requests_before(7), 0);
  EXPECT_EQ(clock->requests_before(8), 1);
  EXPECT_EQ(clock->requests_before(70), 9);
  EXPECT_EQ(clock->requests_before(71), 10);
  EXPECT_EQ(clock->requests_before(kMost), 10);
  EXPECT_EQ(clock->end(), 70);
}

TEST(ReplayClock, NamesWhatIsOutOfRange) {
  const Timing good{.step_ns = 10, .stall_ns = 0, .delivery_ns = 0, .infer_ns = 7};
  const Horizon rows{.warmup = 1, .rows = 2, .requests = 1};
  EXPECT_TRUE(ReplayClock::make(good, rows));
  const auto said = [](const Timing& timing, const Horizon& horizon) {
    const auto clock = ReplayClock::make(timing, horizon);
    return clock ? std::string("nothing") : clock.error().message();
  };
  EXPECT_TRUE(said({0, 0, 0, 7}, rows).starts_with("step time"));
  EXPECT_TRUE(said({10, -1, 0, 7}, rows).starts_with("stall time"));
  EXPECT_TRUE(said({10, 0, -1, 7}, rows).starts_with("delivery time"));
  EXPECT_TRUE(said({10, 0, 0, 0}, rows).starts_with("time between inferences"));
  EXPECT_TRUE(said(good, {0, 2, 1}).starts_with("warm-up"));
  EXPECT_TRUE(said(good, {2, 2, 1}).starts_with("warm-up"));
  EXPECT_TRUE(said(good, {1, ReplayClock::kRowsMax + 1, 1}).starts_with("rows"));
  EXPECT_TRUE(said(good, {1, 2, 0}).starts_with("inferences"));
  EXPECT_TRUE(said(good, {1, 2, ReplayClock::kRequestsMax + 1}).starts_with("inferences"));
}

TEST(ReplayClock, RefusesTimesThatItCannotHold) {
  const Horizon rows{.warmup = 1, .rows = 1'000'001, .requests = 1};
  EXPECT_FALSE(ReplayClock::make({.step_ns = kMost / 1'000'000, .infer_ns = 1}, rows));
  EXPECT_FALSE(ReplayClock::make({.step_ns = 1, .stall_ns = kMost, .infer_ns = 1}, rows));
  EXPECT_FALSE(ReplayClock::make({.step_ns = 1, .delivery_ns = kMost, .infer_ns = 1}, rows));
  EXPECT_FALSE(ReplayClock::make({.step_ns = 1, .infer_ns = kMost}, {1, 2, 3}));
}

}  // namespace
}  // namespace freshet
