// SPDX-License-Identifier: Apache-2.0
/// What one peer can do to the publisher's machine by asking a lot, or by saying what cannot be.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iterator>

#include "tests/transport/protocol/machine_fixture.h"
#include "transport/protocol/publisher/publisher_machine.h"

namespace freshet::protocol::test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class MachineLimits : public ::testing::Test {
 protected:
  void open(PublisherMachine::Options options) {
    options.model = kModel;
    options.host = "here";
    machine_.emplace(std::move(options));
  }
  void receive(Message message, Time now = at(0), const Peer& peer = "peer") {
    machine_->on_message(peer, std::move(message), now);
    settle(now);
  }
  /// With a directory that says yes to everything, at once.
  void settle(Time now) {
    actions_.clear();
    for (auto some = machine_->take_actions(); !some.empty(); some = machine_->take_actions()) {
      for (const auto& swap : actions_of<action::SwapCurrent>(some)) machine_->on_current_swapped(swap.desired, now);
      std::move(some.begin(), some.end(), std::back_inserter(actions_));
    }
  }
  template <typename M>
  std::vector<M> sent() {
    return messages<M, action::Send>(actions_);
  }
  void commit(VersionNumber number, SegmentIndex first, Time now = at(0)) {
    machine_->on_committed(version(number, first, first + 1), now);
    settle(now);
  }
  /// Whose door is open.
  void join(SessionId session, const Peer& peer = "peer", Mode mode = Mode::latest) {
    receive(Hello{.session = session, .model = kModel, .mode = mode, .host = "here"}, at(0), peer);
    ASSERT_THAT(sent<Welcome>(), SizeIs(1));
    ASSERT_TRUE(machine_->on_door_open(session, sent<Welcome>()[0].door_token, at(0)));
  }
  VersionNumber floor_after_hello(VersionNumber highest_seen) {
    receive(Hello{.session = ++session_, .model = kModel, .host = "here", .highest_seen = highest_seen});
    return machine_->number_floor();
  }

  std::optional<PublisherMachine> machine_;
  std::vector<PublisherAction> actions_;
  SessionId session_ = 100;
};

/// Its snapshots outlive it.
TEST_F(MachineLimits, WhoSaysByeAndReadsOnCostsNothingButWhatItReads) {
  for (const Mode mode : {Mode::latest, Mode::every}) {
    SCOPED_TRACE(mode == Mode::every);
    open({.incarnation = 5, .grant_again = Duration(0)});
    const auto freed = [&] {
      std::vector<SegmentIndex> all;
      for (const auto& free : actions_of<action::Free>(actions_)) {
        all.insert(all.end(), free.segments.begin(), free.segments.end());
      }
      return all;
    };
    commit(1, 10);
    join(7, "peer", mode);
    receive(Want{.session = 7, .request = 1});
    ASSERT_THAT(sent<Grant>(), SizeIs(1));
    if (mode == Mode::latest) receive(Want{.session = 7, .request = 2, .after = 1, .waits = true});
    receive(Bye{.session = 7, .reads_on = true});
    EXPECT_THAT(actions_of<action::CloseDoor>(actions_), IsEmpty());
    commit(2, 12);
    EXPECT_THAT(sent<Grant>(), IsEmpty()) << "it wants nothing more";
    commit(3, 14);
    EXPECT_THAT(freed(), ElementsAre(12, 13)) << "nothing waits for it";
    machine_->on_tick(at(60'000));
    settle(at(60'000));
    ASSERT_THAT(machine_->sessions(), SizeIs(1));
    EXPECT_TRUE(machine_->sessions()[0].silent);
    EXPECT_THAT(machine_->sessions()[0].held, ElementsAre(1));
    receive(Ping{.session = 7});
    EXPECT_THAT(sent<UnknownSession>(), SizeIs(1)) << "it has left";
    machine_->on_door_closed(7, at(60'001));
    settle(at(60'001));
    EXPECT_THAT(freed(), ElementsAre(10, 11));
    EXPECT_FALSE(machine_->knows(7));
  }
}

TEST_F(MachineLimits, AHelloIsBelievedWhatTheDirectoryGaveOut) {
  open({.believed_number_max = 50});
  EXPECT_EQ(floor_after_hello(kHighestSeenMax), 0U);
  EXPECT_EQ(floor_after_hello(51), 0U);
  EXPECT_EQ(floor_after_hello(50), 50U);
  commit(51, 10);
  EXPECT_EQ(floor_after_hello(kHighestSeenMax), 51U);
  // Nor by a Hello that goes on with its session.
  receive(Hello{.session = session_, .model = kModel, .host = "here", .highest_seen = 52});
  EXPECT_EQ(machine_->number_floor(), 51U);
}

TEST_F(MachineLimits, WhereTheDirectoryRemembersNothingAHelloMayBeRightWithinBounds) {
  open({});
  EXPECT_EQ(floor_after_hello(kHighestSeenMax), 0U);
  EXPECT_EQ(floor_after_hello(kNumbersBelieved), kNumbersBelieved);
  EXPECT_EQ(floor_after_hello(kNumbersBelieved + 1), kNumbersBelieved) << "not further each time";
}

TEST_F(MachineLimits, APingsEpochIsBelievedWithinBounds) {
  open({});
  commit(1, 10);
  join(1);
  const auto epoch_after_ping = [&](std::uint64_t epoch) {
    receive(Ping{.session = 1, .serving = 1, .epoch = epoch});
    return machine_->activation().current().epoch;
  };
  EXPECT_EQ(epoch_after_ping(std::uint64_t{1} << 61), 0U);
  EXPECT_EQ(epoch_after_ping(kEpochsBelieved), kEpochsBelieved);
  EXPECT_EQ(epoch_after_ping(kEpochsBelieved + 1), kEpochsBelieved) << "not further each time";
}

TEST_F(MachineLimits, EqualWantsAreAnsweredOnceAWhile) {
  open({.grant_again = std::chrono::milliseconds(100), .grants_at_once = 0});
  join(1);
  commit(1, 10);
  std::uint64_t request = 0;
  const auto grants_to_wants = [&](Time now, ChannelKind channel = ChannelKind::shm) {
    std::size_t grants = 0;
    for (int i = 0; i < 500; ++i) {
      receive(Want{.session = 1, .request = ++request, .channel = channel}, now);
      grants += sent<Grant>().size();
      // Letting go of it does not make it another one.
      receive(Held{.session = 1, .grants_seen = request}, now);
    }
    return grants;
  };
  EXPECT_EQ(grants_to_wants(at(0)), 1U);
  EXPECT_EQ(grants_to_wants(at(99)), 0U);
  EXPECT_EQ(grants_to_wants(at(100)), 1U);
  commit(2, 12, at(101));
  EXPECT_EQ(grants_to_wants(at(101)), 1U) << "that is another version";
  machine_->on_tick(at(200));
  settle(at(200));
  EXPECT_THAT(sent<Grant>(), IsEmpty());
  machine_->on_tick(at(201));
  settle(at(201));
  ASSERT_THAT(sent<Grant>(), SizeIs(1)) << "the last Want is answered when the pace allows";
  EXPECT_EQ(sent<Grant>()[0].request, request);
  EXPECT_EQ(grants_to_wants(at(201)), 0U);
}

TEST_F(MachineLimits, EqualWantsThatWereSavedUpAreAnsweredAtOnceAndFloodsAreNot) {
  open({.grant_again = std::chrono::milliseconds(100), .grants_at_once = 4});
  join(1);
  commit(1, 10);
  std::uint64_t request = 0;
  const auto grants_to_wants = [&](Time now, int wants) {
    std::size_t grants = 0;
    for (int i = 0; i < wants; ++i) {
      receive(Want{.session = 1, .request = ++request}, now);
      grants += sent<Grant>().size();
    }
    return grants;
  };
  EXPECT_EQ(grants_to_wants(at(0), 500), 5U);
  std::size_t flooded = 0;
  for (int ms = 1; ms <= 2000; ++ms) flooded += grants_to_wants(at(ms), 10);
  EXPECT_LE(flooded, 40U) << "twenty a second at most";
  EXPECT_EQ(grants_to_wants(at(4000), 500), 5U);
}

TEST_F(MachineLimits, TheSameVersionUnderAnotherEpochIsAnotherGrant) {
  open({.grant_again = std::chrono::milliseconds(100), .grants_at_once = 0, .retained_versions = 4});
  join(1);
  commit(1, 10);
  commit(2, 12);
  std::uint64_t request = 0;
  for (std::uint64_t epoch = 0; epoch < 20; ++epoch) {
    const VersionNumber current = machine_->activation().current().version;
    receive(Want{.session = 1, .request = ++request, .after = 0, .after_epoch = epoch});
    ASSERT_THAT(sent<Grant>(), SizeIs(1)) << "epoch " << epoch;
    EXPECT_EQ(sent<Grant>()[0].number, current);
    receive(Activate{.model = kModel,
                     .request = request,
                     .expected = machine_->activation().current(),
                     .desired = {.version = current == 2 ? 1U : 0U, .hold = current == 2}},
            at(0), "operator");
    EXPECT_EQ(machine_->activation().current().epoch, epoch + 1);
  }
}

TEST_F(MachineLimits, NewsGoToThoseWhoAreNotSilent) {
  open({});
  join(1, "first");
  join(2, "second");
  receive(Ping{.session = 2}, at(900), "second");
  machine_->on_tick(at(1000));
  machine_->take_actions();
  commit(1, 10, at(1000));
  const auto news = actions_of<action::Announce>(actions_);
  ASSERT_THAT(news, SizeIs(1));
  EXPECT_THAT(news[0].peers, ElementsAre("second"));
  receive(Ping{.session = 1}, at(1001), "first");
  ASSERT_THAT(sent<Pong>(), SizeIs(1));
  EXPECT_EQ(sent<Pong>()[0].newest, 1U) << "who was silent hears with its next Pong";
  EXPECT_THAT(actions_of<action::Announce>(actions_), IsEmpty());
}

TEST_F(MachineLimits, AnActivationsAnswerCountsWhoHasNotFollowedAlsoBehindRelays) {
  open({.retained_versions = 4});
  join(1, "relay");
  join(2, "leaf");
  for (VersionNumber number = 1; number <= 3; ++number) commit(number, 10 * number);
  const auto ping = [&](SessionId session, const Peer& peer, std::uint64_t epoch, std::uint32_t behind, Time now) {
    receive(Ping{.session = session, .serving = 3, .epoch = epoch, .behind = behind}, now, peer);
    return sent<Activated>();
  };
  ping(1, "relay", 0, 0, at(0));
  ping(2, "leaf", 0, 0, at(0));
  receive(Activate{.model = kModel, .request = 9, .desired = {.version = 1, .hold = true}}, at(1), "operator");
  EXPECT_EQ(machine_->activation().current(), (Current{.epoch = 1, .version = 1, .hold = true}));
  EXPECT_THAT(sent<Activated>(), IsEmpty());
  // The relay follows, one behind it does not; nor does the leaf.
  for (int ms = 250; ms <= 2250; ms += 250) {
    EXPECT_THAT(ping(1, "relay", 1, 1, at(ms)), IsEmpty());
    EXPECT_THAT(ping(2, "leaf", 0, 0, at(ms)), IsEmpty());
  }
  const auto last = ping(1, "relay", 1, 1, at(2600));
  ASSERT_THAT(last, SizeIs(1));
  EXPECT_FALSE(last[0].refused);
  EXPECT_EQ(last[0].behind, 2U);
  std::uint32_t behind = 0;
  for (const auto& session : machine_->sessions()) behind += session.behind;
  EXPECT_EQ(behind, 1U) << "what `top` tells of the relay";
}

TEST_F(MachineLimits, ARelayHandsOnAnOlderVersionThatItWentBackTo) {
  open({.activation = {.follows = true}});
  join(1);
  for (VersionNumber number = 1; number <= 3; ++number) commit(number, 10 * number);
  machine_->on_current_seen({.epoch = 1, .version = 1, .hold = true}, at(0));
  settle(at(0));
  receive(Want{.session = 1, .request = 1, .after = 3});
  ASSERT_THAT(sent<Refusal>(), SizeIs(1)) << "it has it no more";
  EXPECT_TRUE(machine_->on_restored(version(1, 50, 51), at(1)));
  settle(at(1));
  EXPECT_THAT(actions_of<action::Announce>(actions_), SizeIs(1)) << "whoever was refused asks again";
  receive(Want{.session = 1, .request = 2, .after = 3}, at(2));
  ASSERT_THAT(sent<Grant>(), SizeIs(1));
  EXPECT_EQ(sent<Grant>()[0].number, 1U);
  EXPECT_EQ(sent<Grant>()[0].epoch, 1U);
  EXPECT_FALSE(machine_->on_restored(version(1, 60, 61), at(3)));
  // It goes when something else is current and nobody holds it.
  receive(Held{.session = 1, .grants_seen = 1}, at(4));
  machine_->on_current_seen({.epoch = 2, .version = 3}, at(5));
  machine_->take_actions();
  commit(4, 40, at(6));
  std::vector<SegmentIndex> freed;
  for (const auto& free : actions_of<action::Free>(actions_)) {
    freed.insert(freed.end(), free.segments.begin(), free.segments.end());
  }
  EXPECT_THAT(freed, ::testing::UnorderedElementsAre(50, 51));
}

TEST_F(MachineLimits, EveryVersionComesAlsoFromARelayThatWentBack) {
  open({.retained_versions = 4, .activation = {.follows = true}});
  commit(10, 10);
  commit(20, 20);
  machine_->on_current_seen({.epoch = 1, .version = 15}, at(0));
  ASSERT_TRUE(machine_->on_restored(version(15, 50, 51), at(0)));
  settle(at(0));
  join(7, "peer", Mode::every);
  VersionNumber after = 0;
  for (const VersionNumber number : {10, 15, 20}) {
    receive(Want{.session = 7, .request = number, .after = after});
    ASSERT_THAT(sent<Grant>(), SizeIs(1)) << number;
    EXPECT_EQ(sent<Grant>()[0].number, number);
    EXPECT_EQ(sent<Grant>()[0].gap_before, 0U);
    EXPECT_TRUE(decode(encode(Message(sent<Grant>()[0]))));
    after = number;
  }
}

TEST_F(MachineLimits, WhatGaveWayBeforeTheFirstWantIsCounted) {
  open({.every_queue_versions_max = 3});
  commit(3, 6);
  join(7, "peer", Mode::every);
  for (const VersionNumber number : {4, 6, 7, 8, 9}) commit(number, static_cast<SegmentIndex>(10 * number));
  receive(Want{.session = 7, .request = 1});
  ASSERT_THAT(sent<Grant>(), SizeIs(1));
  EXPECT_EQ(sent<Grant>()[0].number, 7u);
  EXPECT_EQ(sent<Grant>()[0].gap_before, 2u) << "4 and 6; 3 was there before";
}

}  // namespace
}  // namespace freshet::protocol::test
