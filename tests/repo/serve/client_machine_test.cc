// SPDX-License-Identifier: Apache-2.0
#include "repo/serve/client/client_machine.h"

#include <gtest/gtest.h>

namespace freshet::rpc {
namespace {

using std::chrono::milliseconds;

TEST(ClientMachine, AsksWhetherASilentServerLivesAndGivesItUp) {
  const Time start{};
  ClientMachine machine({}, start);
  machine.on_sent(1);
  EXPECT_FALSE(machine.on_tick(start + milliseconds(100)).ping);
  EXPECT_TRUE(machine.on_tick(start + milliseconds(250)).ping);
  EXPECT_FALSE(machine.on_tick(start + milliseconds(500)).ping) << "one ping at a time";
  EXPECT_FALSE(machine.on_tick(start + milliseconds(3249)).dead);
  EXPECT_TRUE(machine.on_tick(start + milliseconds(3250)).dead);
}

TEST(ClientMachine, KeepsItsSessionAliveWhenItAsksNothing) {
  const Time start{};
  ClientMachine machine({}, start);
  EXPECT_FALSE(machine.on_tick(start + milliseconds(999)).ping);
  EXPECT_TRUE(machine.on_tick(start + milliseconds(1000)).ping);
  EXPECT_TRUE(machine.on_pong({}, start + milliseconds(1001)).empty());
  EXPECT_EQ(machine.next_tick(), start + milliseconds(2000));
}

TEST(ClientMachine, APongTellsWhichAnswersWereLost) {
  const Time start{};
  ClientMachine machine({}, start);
  machine.on_sent(1);
  machine.on_sent(2);
  machine.on_sent(3);
  EXPECT_TRUE(machine.on_tick(start + milliseconds(250)).ping);
  machine.on_sent(4);
  EXPECT_TRUE(machine.on_reply(3, true, start + milliseconds(251)));
  EXPECT_EQ(machine.on_pong({2}, start + milliseconds(252)), std::vector<std::uint64_t>{1})
      << "2 is worked on, 3 was answered, and 4 was sent after the ping";
  EXPECT_FALSE(machine.on_reply(1, true, start + milliseconds(253))) << "nobody waits for it any more";
  EXPECT_TRUE(machine.on_reply(2, false, start + milliseconds(254)));
  EXPECT_TRUE(machine.on_reply(2, true, start + milliseconds(255)));
}

TEST(ClientMachine, AStreamOfAnswersIsALivingServer) {
  Time now{};
  ClientMachine machine({}, now);
  machine.on_sent(1);
  for (int i = 0; i < 100; ++i) {
    now += milliseconds(200);
    EXPECT_TRUE(machine.on_reply(1, false, now));
    EXPECT_FALSE(machine.on_tick(now).dead);
  }
}

}  // namespace
}  // namespace freshet::rpc
