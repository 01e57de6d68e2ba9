// SPDX-License-Identifier: Apache-2.0
#include "tests/support/net/lab/delay_line.h"

#include <gtest/gtest.h>

#include <vector>

namespace freshet::lab {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

const Time kStart{std::chrono::seconds(1)};

TEST(DelayLine, DelaysEachPacketAlike) {
  DelayLine line({.delay = milliseconds(10)});
  EXPECT_EQ(line.arrival(kStart, 100), kStart + milliseconds(10));
  EXPECT_EQ(line.arrival(kStart + microseconds(3), 64000), kStart + microseconds(10003));
}

TEST(DelayLine, SendsBitsOneAfterTheOther) {
  DelayLine line({.delay = milliseconds(1), .bits_per_second = 8'000'000});  // A byte a microsecond.
  EXPECT_EQ(line.arrival(kStart, 500), kStart + microseconds(1500));
  EXPECT_EQ(line.arrival(kStart, 500), kStart + microseconds(2000)) << "it waits for the first";
  EXPECT_EQ(line.arrival(kStart + milliseconds(5), 500), kStart + microseconds(6500)) << "the line was free";
}

TEST(DelayLine, LosesWhatTheQueueCannotHold) {
  DelayLine line({.bits_per_second = 8'000'000, .queue_bytes_max = 1000});
  EXPECT_TRUE(line.arrival(kStart, 600));
  EXPECT_FALSE(line.arrival(kStart, 600));
  EXPECT_TRUE(line.arrival(kStart, 400));
  EXPECT_TRUE(line.arrival(kStart + microseconds(600), 600)) << "600 bytes have left";
  EXPECT_EQ(line.counts().overflow, 1u);
}

TEST(DelayLine, JitterKeepsTheOrder) {
  DelayLine line({.delay = milliseconds(10), .jitter = milliseconds(5)});
  Time last{};
  bool varied = false;
  for (int i = 0; i < 1000; ++i) {
    const Time now = kStart + microseconds(100) * i;
    const auto arrival = line.arrival(now, 100);
    ASSERT_TRUE(arrival);
    EXPECT_GE(*arrival, last);
    EXPECT_GE(*arrival - now, milliseconds(10));
    EXPECT_LE(*arrival - now, milliseconds(16));
    varied |= *arrival - now > milliseconds(12);
    last = *arrival;
  }
  EXPECT_TRUE(varied);
}

TEST(DelayLine, LosesAndReordersTheShareThatWasAskedFor) {
  DelayLine line({.delay = milliseconds(1), .reordered = 0.2, .reorder_delay = milliseconds(50), .lost = 0.1});
  std::size_t overtaken = 0;
  Time latest{};
  for (int i = 0; i < 10000; ++i) {
    const auto arrival = line.arrival(kStart + milliseconds(1) * i, 100);
    if (!arrival) continue;
    overtaken += *arrival < latest;
    latest = std::max(latest, *arrival);
  }
  EXPECT_NEAR(static_cast<double>(line.counts().lost), 1000, 150);
  EXPECT_NEAR(static_cast<double>(line.counts().reordered), 1800, 200);
  EXPECT_GT(overtaken, 1000u);
}

TEST(DelayLine, RepeatsItselfForTheSameSeed) {
  const auto run = [](std::uint64_t seed) {
    DelayLine line({.jitter = milliseconds(5), .lost = 0.3, .seed = seed});
    std::vector<std::optional<Time>> arrivals;
    for (int i = 0; i < 100; ++i) arrivals.push_back(line.arrival(kStart, 1));
    return arrivals;
  };
  EXPECT_EQ(run(7), run(7));
  EXPECT_NE(run(7), run(8));
}

}  // namespace
}  // namespace freshet::lab
