// SPDX-License-Identifier: Apache-2.0
#include "core/base/interruption.h"
#include "tests/support/refused.h"

#include <gtest/gtest.h>

#include <thread>

namespace freshet {
namespace {

TEST(Interruption, IsAThreadsOwnAndTheInnermostIsInForce) {
  EXPECT_FALSE(Interruption::is_wanted());
  EXPECT_EQ(Interruption::next_look(Time::max()), Time::max());
  bool outer_wanted = true;
  {
    const Interruption outer([&] { return outer_wanted; });
    EXPECT_TRUE(Interruption::is_wanted());
    EXPECT_LT(Interruption::next_look(Time::max()), Time::max());
    EXPECT_EQ(Interruption::next_look(Time::min()), Time::min());
    {
      const Interruption inner([] { return false; });
      EXPECT_FALSE(Interruption::is_wanted());
    }
    EXPECT_TRUE(Interruption::is_wanted());
    std::thread([] { EXPECT_FALSE(Interruption::is_wanted()); }).join();
    outer_wanted = false;
    EXPECT_FALSE(Interruption::is_wanted());
  }
  EXPECT_FALSE(Interruption::is_wanted());
}

TEST(StopInterrupts, AddsAStopToTheInterruptionInForce) {
  std::stop_source stop;
  bool outer_wanted = false;
  const Interruption outer([&] { return outer_wanted; });
  {
    const StopInterrupts by_nobody{std::stop_token()};
    EXPECT_FALSE(Interruption::is_wanted());
  }
  const StopInterrupts inner(stop.get_token());
  EXPECT_FALSE(Interruption::is_wanted());
  outer_wanted = true;
  EXPECT_TRUE(Interruption::is_wanted());
  outer_wanted = false;
  stop.request_stop();
  EXPECT_TRUE(Interruption::is_wanted());
}

TEST(StopInterrupts, WithoutAStopNoWaitHasToAsk) {
  const StopInterrupts by_nobody{std::stop_token()};
  EXPECT_FALSE(Interruption::is_possible());
  std::stop_source stop;
  const StopInterrupts by_somebody(stop.get_token());
  EXPECT_TRUE(Interruption::is_possible());
}

TEST(Interruption, EndsLongWorkWithCancelled) {
  EXPECT_TRUE(Interruption::check());
  bool wanted = false;
  const Interruption interruption([&] { return wanted; });
  EXPECT_TRUE(Interruption::check());
  wanted = true;
  EXPECT_TRUE(is_refused(Interruption::check(), Code::cancelled));
}

}  // namespace
}  // namespace freshet
