// SPDX-License-Identifier: Apache-2.0
#include "transport/protocol/version_times.h"

#include <gtest/gtest.h>

#include <random>
#include <utility>
#include <vector>

#include "tests/transport/protocol/machine_fixture.h"
#include "transport/protocol/publisher/publisher_machine.h"
#include "transport/zmq/hub/hub_model.h"

namespace freshet::protocol::test {
namespace {

using std::chrono::milliseconds;

TEST(Staleness, BeginsWithTheFirstVersionThatIsNotServed) {
  VersionTimes times;
  Staleness one;
  one.update(0, times);
  EXPECT_EQ(one.at(at(5)), Duration(0)) << "there is no version";
  times.note(7, at(10));
  one.update(7, times);
  EXPECT_EQ(one.at(at(20)), Duration(0));
  times.note(8, at(30));
  one.update(7, times);
  times.note(9, at(40));
  one.update(7, times);
  EXPECT_EQ(one.at(at(100)), milliseconds(70));
  one.update(8, times);  // On the way: version 9 is missing since then.
  EXPECT_EQ(one.at(at(100)), milliseconds(60));
  one.update(9, times);
  EXPECT_EQ(one.at(at(100)), Duration(0));
}

TEST(Staleness, LastsLongerThanTheTimesAreKept) {
  VersionTimes times;
  Staleness stuck;
  times.note(1, at(0));
  stuck.update(1, times);
  for (VersionNumber number = 2; number < 2 + 3 * VersionTimes::kKeptMax; ++number) {
    times.note(number, at(static_cast<std::int64_t>(number)));
    stuck.update(1, times);
  }
  EXPECT_EQ(stuck.at(at(5000)), milliseconds(5000 - 2));
}

TEST(Staleness, NumbersMayBeginAnew) {
  VersionTimes times;
  Staleness one;
  times.note(50, at(0));
  one.update(50, times);
  times.note(1, at(10));
  one.update(50, times);
  EXPECT_EQ(one.at(at(20)), Duration(0)) << "nothing has a higher number";
  one.update(1, times);
  times.note(2, at(30));
  one.update(1, times);
  EXPECT_EQ(one.at(at(35)), milliseconds(5));
}

TEST(Staleness, EndsWhereThereIsNoVersionAnyMore) {
  VersionTimes times;
  Staleness one;
  times.note(5, at(0));
  one.update(5, times);
  times.note(7, at(10));
  one.update(5, times);
  EXPECT_EQ(one.at(at(20)), milliseconds(10));
  times.note(0, at(30));  // Another publisher came, with no version yet.
  one.update(5, times);
  EXPECT_EQ(one.at(at(40)), Duration(0)) << "nothing newer is known";
  times.note(7, at(50));
  one.update(5, times);
  EXPECT_EQ(one.at(at(60)), milliseconds(10));
}

TEST(Staleness, IsWhatAPlainSearchFinds) {
  const unsigned seed = 20261127;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  VersionTimes times;
  Staleness one;
  std::vector<std::pair<VersionNumber, Time>> all;
  VersionNumber newest = 0;
  VersionNumber serving = 0;
  for (int step = 0; step < 200; ++step) {
    const Time now = at(step);
    if (random() % 2 == 0) {
      newest += 1 + random() % 3;
      times.note(newest, now);
      all.emplace_back(newest, now);
    } else if (!all.empty()) {
      serving = std::max(serving, all[random() % all.size()].first);
    }
    one.update(serving, times);
    const auto first = std::ranges::find_if(all, [&](const auto& version) { return version.first > serving; });
    const bool is_newest = first == all.end();
    ASSERT_EQ(one.at(now), is_newest ? Duration(0) : std::max(now - first->second, Duration(1))) << "step " << step;
  }
}

/// What the publisher knows of its subscribers.
class MachineStaleness : public ::testing::Test {
 protected:
  void receive(Message message, std::int64_t ms) { machine_.on_message("peer", std::move(message), at(ms)); }
  void join(std::int64_t ms) {
    receive(Hello{.session = 7, .model = kModel, .host = "here"}, ms);
    for (const auto& welcome : messages<Welcome, action::Send>(machine_.take_actions())) {
      ASSERT_TRUE(machine_.on_door_open(7, welcome.door_token, at(ms)));
    }
  }
  void commit(VersionNumber number, std::int64_t ms) { machine_.on_committed(version(number, 10, 11), at(ms)); }
  SubscriberStat stat() { return machine_.sessions().at(0); }

  PublisherMachine machine_{{.model = kModel, .incarnation = 5, .host = "here"}};
};

TEST_F(MachineStaleness, CountsFromTheCommitOrFromWhenTheSubscriberCame) {
  commit(1, 0);
  join(100);
  receive(Ping{.session = 7, .serving = 0}, 130);
  EXPECT_EQ(stat().staleness, milliseconds(30)) << "it was not there before";
  receive(Ping{.session = 7, .serving = 1}, 140);
  EXPECT_EQ(stat().staleness, Duration(0));
  commit(2, 200);
  commit(3, 250);
  receive(Ping{.session = 7, .serving = 1}, 300);
  EXPECT_EQ(stat().staleness, milliseconds(100));
  receive(Ping{.session = 7, .serving = 2}, 300);
  EXPECT_EQ(stat().staleness, milliseconds(50));
  receive(Ping{.session = 7, .serving = 3}, 400);
  EXPECT_EQ(stat().staleness, Duration(0));
}

TEST_F(MachineStaleness, EndsWithTheWantThatTellsWhatIsServed) {
  commit(1, 0);
  join(0);
  receive(Ping{.session = 7, .serving = 1}, 0);
  commit(2, 200);
  receive(Want{.session = 7, .request = 1, .after = 2, .serving = 2}, 210);
  EXPECT_EQ(stat().serving, 2U);
  EXPECT_EQ(stat().staleness, Duration(0)) << "no ping is waited for";
  commit(3, 300);
  receive(Want{.session = 7, .request = 2, .after = 2}, 340);
  EXPECT_EQ(stat().serving, 2U) << "an older subscriber's Want does not tell";
  EXPECT_EQ(stat().staleness, milliseconds(40));
}

TEST_F(MachineStaleness, AServerThatWithdrawsItsVersionIsStaleSinceThen) {
  join(0);
  commit(1, 10);
  commit(2, 20);
  receive(Ping{.session = 7, .serving = 2}, 30);
  receive(Ping{.session = 7, .serving = 0}, 500);
  receive(Ping{.session = 7, .serving = 0}, 520);
  EXPECT_EQ(stat().staleness, milliseconds(20));
  receive(Ping{.session = 7, .serving = 2}, 530);
  EXPECT_EQ(stat().staleness, Duration(0));
}

TEST_F(MachineStaleness, GrowsWhereNothingHappensAfterTheCommit) {
  commit(1, 0);
  join(0);
  receive(Ping{.session = 7, .serving = 1}, 0);
  commit(2, 200);  // And the subscriber was stopped before.
  const ModelStanding standing{.at = machine_.settled_at(), .sessions = machine_.sessions()};
  PublisherStat stat{.subscribers = standing.sessions};
  standing.put_into(stat, at(5200));
  EXPECT_GE(stat.subscribers.at(0).staleness, milliseconds(5000));
  EXPECT_LE(stat.subscribers.at(0).staleness, milliseconds(5001));
}

TEST_F(MachineStaleness, AFailureCountsOnceHoweverOftenItIsSaid) {
  commit(1, 0);
  join(0);
  const Error torn(Code::corrupt, "torn");
  receive(Staged{.session = 7, .number = 1, .failed = torn, .turn = 3}, 1);
  receive(Staged{.session = 7, .number = 1, .failed = torn, .turn = 3}, 2);
  EXPECT_EQ(stat().failures, 1U);
  EXPECT_EQ(stat().failed, "torn");
  receive(Staged{.session = 7, .number = 1, .failed = torn, .turn = 2}, 3);
  EXPECT_EQ(stat().failures, 1U) << "it was overtaken";
  receive(Staged{.session = 7, .number = 1, .turn = 4}, 4);
  receive(Staged{.session = 7, .number = 1, .failed = torn, .turn = 5}, 5);
  EXPECT_EQ(stat().failures, 2U);
}

}  // namespace
}  // namespace freshet::protocol::test
