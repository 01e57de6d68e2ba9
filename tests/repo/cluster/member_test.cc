// SPDX-License-Identifier: Apache-2.0
#include "repo/cluster/member.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stop_token>
#include <thread>

#include "core/base/interruption.h"

namespace freshet {
namespace {

TEST(AtOnce, TheCallersStopEndsTheWaitsOfAll) {
  std::stop_source stop;
  const StopInterrupts stops(stop.get_token());
  std::atomic<int> ended = 0;
  cluster::at_once(4, [&](std::size_t i) {
    if (i == 0) {
      stop.request_stop();
    } else {
      while (!Interruption::is_wanted()) std::this_thread::yield();
    }
    ++ended;
  });
  EXPECT_EQ(ended, 4);
}

TEST(AtOnce, WithoutAStopNobodyHasToAsk) {
  std::atomic<int> ended = 0;
  cluster::at_once(4, [&](std::size_t) {
    EXPECT_FALSE(Interruption::is_possible());
    ++ended;
  });
  EXPECT_EQ(ended, 4);
}

}  // namespace
}  // namespace freshet
