// SPDX-License-Identifier: Apache-2.0
/// Where nothing is lost, nobody waits for a heartbeat or a retry. The clock stands still unless a test advances it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/transport/protocol/machine_pair.h"

namespace freshet::protocol::test {
namespace {

using std::chrono::milliseconds;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int kRounds = 50;
/// Heartbeats that somebody waits for come so soon after the last one, and sessions after one that was opened.
constexpr auto kSoon = milliseconds(5);

class PausesOf : public ::testing::TestWithParam<ChannelKind> {};

TEST_P(PausesOf, GoingBackAndForthWithoutGaps) {
  MachinePair pair(GetParam());
  pair.open_publisher();
  pair.start_subscriber();
  VersionNumber before = pair.commit();
  EXPECT_EQ(pair.serving(), before);
  for (int round = 0; round < kRounds; ++round) {
    const VersionNumber newest = pair.commit();
    EXPECT_EQ(pair.serving(), newest) << "round " << round;
    pair.activate(before);
    EXPECT_EQ(pair.serving(), before) << "round " << round;
    ASSERT_TRUE(pair.answer()) << "round " << round;
    EXPECT_EQ(pair.answer()->behind, 0U);
    pair.activate(0);
    EXPECT_EQ(pair.serving(), newest) << "round " << round;
    ASSERT_TRUE(pair.answer()) << "round " << round;
    before = newest;
  }
  EXPECT_EQ(pair.now(), at(0));
}

TEST_P(PausesOf, APublishUnderAHoldAndItsRelease) {
  MachinePair pair(GetParam());
  pair.open_publisher();
  pair.start_subscriber();
  VersionNumber held = pair.commit();
  for (int round = 0; round < kRounds; ++round) {
    pair.activate(held);
    const VersionNumber newest = pair.commit();
    EXPECT_EQ(pair.serving(), held) << "round " << round;
    pair.activate(0);
    EXPECT_EQ(pair.serving(), newest) << "round " << round;
    held = newest;
  }
  EXPECT_EQ(pair.now(), at(0));
}

TEST_P(PausesOf, LookingAtVersionsByTheirNumbersAgainAndAgain) {
  MachinePair pair(GetParam());
  pair.open_publisher();
  pair.start_subscriber();
  const VersionNumber first = pair.commit();
  const VersionNumber second = pair.commit();
  pair.commit();
  for (int look = 0; look < 8; ++look) {
    for (const VersionNumber number : {first, second}) {
      ASSERT_TRUE(pair.subscriber().bring(number, pair.now()));
      pair.settle();
      ASSERT_TRUE(pair.subscriber().staging().ready()) << "look " << look << " at @" << number;
      pair.subscriber().forget(number, pair.now());
      pair.settle();
    }
  }
  EXPECT_EQ(pair.now(), at(0));
}

/// The pace of equal grants is not a retry's: the Want is answered when the pace allows.
TEST_P(PausesOf, WhoLooksTooOftenIsAnsweredAtThePaceOfGrants) {
  MachinePair pair(GetParam());
  pair.open_publisher();
  pair.start_subscriber();
  const VersionNumber first = pair.commit();
  pair.commit();
  Duration longest{};
  for (int look = 0; look < kRounds; ++look) {
    const Time asked = pair.now();
    ASSERT_TRUE(pair.subscriber().bring(first, pair.now()));
    pair.settle();
    while (!pair.subscriber().staging().ready() && pair.now() < asked + milliseconds(400))
      pair.advance(milliseconds(1));
    ASSERT_TRUE(pair.subscriber().staging().ready());
    longest = std::max(longest, pair.now() - asked);
    pair.subscriber().forget(first, pair.now());
    pair.settle();
  }
  EXPECT_GT(longest, Duration(0)) << "the pace was reached";
  EXPECT_LE(longest, PublisherOptions{}.grant_again);
  EXPECT_LT(pair.grants(), static_cast<std::size_t>(kRounds) + 4) << "nothing was asked for twice";
}

TEST_P(PausesOf, AMemberStagesAndCommitsInBothOrders) {
  MachinePair pair(GetParam(), {.staged = true});
  pair.open_publisher();
  pair.start_subscriber();
  VersionNumber served = pair.commit();
  EXPECT_EQ(pair.serving(), served);
  // Each round stages one version twice, which costs one of the equal grants that are saved up.
  for (int round = 0; round < static_cast<int>(PublisherOptions{}.grants_at_once); ++round) {
    const VersionNumber next = pair.commit();
    EXPECT_EQ(pair.serving(), served) << "a member takes what is decided";
    ASSERT_TRUE(pair.subscriber().stage(next, pair.now()));
    pair.settle();
    ASSERT_TRUE(pair.subscriber().commit_staged(pair.now())) << "round " << round;
    pair.settle();
    EXPECT_EQ(pair.serving(), next);
    EXPECT_EQ(pair.told_serving(), next) << "the publisher knows";
    ASSERT_TRUE(pair.subscriber().stage(served, pair.now()));
    pair.settle();
    ASSERT_TRUE(pair.subscriber().staging().ready()) << "round " << round;
    pair.activate(served);
    EXPECT_EQ(pair.serving(), served) << "round " << round;
    pair.activate(0);
    EXPECT_EQ(pair.serving(), next) << "round " << round;
    served = next;
  }
  EXPECT_EQ(pair.now(), at(0));
}

TEST_P(PausesOf, ThePublisherKnowsAtOnceWhatIsServed) {
  MachinePair pair(GetParam());
  pair.open_publisher();
  pair.start_subscriber();
  for (int round = 0; round < kRounds; ++round) {
    const VersionNumber number = pair.commit();
    EXPECT_EQ(pair.told_serving(), number);
  }
  EXPECT_EQ(pair.now(), at(0));
}

TEST_P(PausesOf, ThePublisherKnowsSoonWhatAnEverySubscriberHas) {
  MachinePair pair(GetParam(), {.mode = Mode::every});
  pair.open_publisher();
  pair.start_subscriber();
  for (int round = 0; round < kRounds; ++round) {
    const VersionNumber number = pair.commit();
    EXPECT_EQ(pair.serving(), number);
    pair.advance(kSoon);
    EXPECT_EQ(pair.told_serving(), number) << "round " << round;
  }
}

TEST_P(PausesOf, AnActivationHearsSoonThatAProgramHasPutTheVersionToUse) {
  MachinePair pair(GetParam());
  pair.subscriber().followers().applied(0);
  pair.open_publisher();
  pair.start_subscriber();
  const auto apply = [&](VersionNumber number) {
    pair.subscriber().followers().applied(number);
    pair.subscriber().on_followers(pair.now());
    pair.advance(kSoon);
  };
  const VersionNumber before = pair.commit();
  apply(before);
  const VersionNumber newest = pair.commit();
  apply(newest);
  for (int round = 0; round < kRounds; ++round) {
    pair.activate(before);
    EXPECT_EQ(pair.serving(), before);
    EXPECT_FALSE(pair.answer()) << "it is not in use yet";
    apply(before);
    ASSERT_TRUE(pair.answer()) << "round " << round;
    EXPECT_EQ(pair.answer()->behind, 0U);
    pair.activate(0);
    apply(newest);
    ASSERT_TRUE(pair.answer()) << "round " << round;
  }
}

TEST_P(PausesOf, ASubscriberThatComesFirst) {
  MachinePair pair(GetParam());
  pair.start_subscriber();
  pair.open_publisher();
  const VersionNumber number = pair.commit();
  EXPECT_EQ(pair.serving(), number);
  EXPECT_EQ(pair.now(), at(0));
}

TEST_P(PausesOf, APublisherThatIsOpenedAgain) {
  MachinePair pair(GetParam());
  pair.start_subscriber();
  for (int round = 0; round < kRounds; ++round) {
    pair.open_publisher();
    const VersionNumber number = pair.commit();
    pair.advance(kSoon);
    EXPECT_EQ(pair.serving(), number) << "round " << round;
    pair.close_publisher();
    pair.advance(kSoon);
  }
}

TEST_P(PausesOf, APublisherThatIsReplacedBeforeItsEndIsHeardOf) {
  MachinePair pair(GetParam());
  pair.start_subscriber();
  pair.open_publisher();
  for (int round = 0; round < kRounds; ++round) {
    const VersionNumber number = pair.commit();
    pair.advance(kSoon);
    EXPECT_EQ(pair.serving(), number) << "round " << round;
    pair.replace_publisher();
    pair.advance(kSoon);
  }
}

/// By the directory, or a connection that came back, a subscriber hears that somebody is there; its Hello was lost.
TEST_P(PausesOf, APublisherThatIsReachedAnewHearsAHelloAtOnce) {
  MachinePair pair(GetParam());
  pair.start_subscriber();
  pair.advance(milliseconds(2500));  // By then the Hello of the beginning does not wait any more.
  pair.subscriber().on_reached(pair.now());
  EXPECT_THAT((messages<Hello, action::SendControl>(pair.subscriber().take_actions())), SizeIs(1));
  pair.open_publisher();
  pair.subscriber().on_reached(pair.now());
  pair.settle();
  const VersionNumber number = pair.commit();
  EXPECT_EQ(pair.serving(), number);
  pair.subscriber().on_reached(pair.now());
  EXPECT_THAT((messages<Ping, action::SendControl>(pair.subscriber().take_actions())), SizeIs(1))
      << "whoever does not know the session says so";
}

INSTANTIATE_TEST_SUITE_P(Channels, PausesOf, ::testing::Values(ChannelKind::shm, ChannelKind::zmq),
                         [](const auto& one) { return std::string(to_string(one.param)); });

TEST(WaitingHellos, AreAnsweredOnceAndNotForEver) {
  WaitingHellos hellos;
  hellos.add("one", {.session = 1, .model = "a"}, "key", at(0));
  hellos.add("two", {.session = 2, .model = "b"}, {}, at(0));
  hellos.add("three", {.session = 3, .model = "a", .door_token = 7}, {}, at(0));
  hellos.add("one", {.session = 4, .model = "a"}, "key", at(1));
  const auto taken = hellos.take("a", at(2));
  ASSERT_THAT(taken, SizeIs(1)) << "the last of each peer, and no claim of a session";
  EXPECT_EQ(taken[0].hello.session, 4U);
  EXPECT_EQ(taken[0].key, "key");
  EXPECT_THAT(hellos.take("a", at(2)), IsEmpty());
  EXPECT_THAT(hellos.take("b", at(0) + WaitingHellos::kKeptFor), IsEmpty());
}

TEST(WaitingHellos, AreForgottenWithTheirOwnSession) {
  WaitingHellos hellos;
  hellos.add("one", {.session = 1, .model = "a"}, {}, at(0));
  hellos.add("two", {.session = 2, .model = "a"}, {}, at(0));
  hellos.forget("one", 2);
  hellos.forget("two", 2);
  hellos.forget("nobody", 1);
  const auto taken = hellos.take("a", at(1));
  ASSERT_THAT(taken, SizeIs(1));
  EXPECT_EQ(taken[0].peer, "one");
}

TEST(WaitingHellos, HaveALimitAndMakeRoomWhenTheyAreOld) {
  WaitingHellos hellos;
  for (std::size_t peer = 0; peer <= WaitingHellos::kMax; ++peer) {
    hellos.add(std::to_string(peer), {.session = peer + 1, .model = "a"}, {}, at(0));
  }
  hellos.add("late", {.session = 1, .model = "b"}, {}, at(0) + WaitingHellos::kKeptFor);
  EXPECT_THAT(hellos.take("b", at(0) + WaitingHellos::kKeptFor), SizeIs(1));
  for (std::size_t peer = 0; peer <= WaitingHellos::kMax; ++peer) {
    hellos.add(std::to_string(peer), {.session = peer + 1, .model = "a"}, {}, at(5000));
  }
  EXPECT_THAT(hellos.take("a", at(5000)), SizeIs(WaitingHellos::kMax));
}

}  // namespace
}  // namespace freshet::protocol::test
