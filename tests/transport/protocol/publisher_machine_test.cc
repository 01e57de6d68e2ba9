// SPDX-License-Identifier: Apache-2.0
#include "transport/protocol/publisher/publisher_machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "tests/transport/protocol/machine_fixture.h"

namespace freshet::protocol::test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

class PublisherMachineTest : public ::testing::Test {
 protected:
  explicit PublisherMachineTest(PublisherMachine::Options options = {.model = kModel,
                                                                     .incarnation = 5,
                                                                     .host = "here",
                                                                     .every_queue_versions_max = 3})
      : machine_([&] {
          options.grant_again = Duration(0);  // In most tests the time stands still.
          return std::move(options);
        }()) {}

  template <typename M>
  std::vector<M> sent() {
    return messages<M, action::Send>(actions_);
  }
  std::vector<SegmentIndex> freed() {
    std::vector<SegmentIndex> all;
    for (const auto& free : actions_of<action::Free>(actions_)) {
      all.insert(all.end(), free.segments.begin(), free.segments.end());
    }
    return all;
  }
  /// From here on, sent() and freed() tell of what `event` brought about.
  template <typename Event>
  void when(Event event) {
    event();
    actions_ = machine_.take_actions();
  }
  void receive(Message message, const Peer& peer = "peer", Time now = at(0)) {
    when([&] { machine_.on_message(peer, std::move(message), now); });
  }
  void commit(VersionNumber number, SegmentIndex first, SegmentIndex second) {
    when([&] { machine_.on_committed(version(number, first, second), at(0)); });
  }
  Hello hello(SessionId session, Mode mode = Mode::latest, VersionNumber after = 0) {
    return {.session = session, .model = kModel, .mode = mode, .host = "here", .highest_seen = after, .after = after};
  }
  void join(SessionId session, Mode mode = Mode::latest, VersionNumber after = 0, const Peer& peer = "peer") {
    receive(hello(session, mode, after), peer);
    ASSERT_THAT(sent<Welcome>(), SizeIs(1));
    token_ = sent<Welcome>()[0].door_token;
    ASSERT_TRUE(machine_.on_door_open(session, token_, at(0)));
  }
  /// The grant that answers, or nothing.
  std::optional<Grant> want(SessionId session, std::uint64_t request, VersionNumber after, const Peer& peer = "peer") {
    receive(Want{.session = session, .request = request, .after = after}, peer);
    const auto grants = sent<Grant>();
    return grants.empty() ? std::nullopt : std::optional(grants[0]);
  }

  PublisherMachine machine_;
  std::vector<PublisherAction> actions_;
  std::uint64_t token_ = 0;
};

TEST_F(PublisherMachineTest, TheVersionBeforeIsFreedWhenNobodyHoldsItButSharedSegmentsStay) {
  commit(1, 10, 11);
  EXPECT_THAT(actions_of<action::Announce>(actions_), SizeIs(1));
  commit(2, 10, 12);
  EXPECT_THAT(freed(), ElementsAre(11));
  commit(3, 13, 14);
  EXPECT_THAT(freed(), UnorderedElementsAre(10, 12));
}

TEST_F(PublisherMachineTest, AGrantHoldsUntilAHeldLeavesItOut) {
  commit(1, 10, 11);
  join(7);
  const auto grant = want(7, 1, 0);
  ASSERT_TRUE(grant);
  EXPECT_EQ(grant->number, 1u);
  EXPECT_FALSE(grant->architecture.empty());
  commit(2, 12, 13);
  EXPECT_THAT(freed(), IsEmpty());
  receive(Held{.session = 7, .grants_seen = grant->grant, .numbers = {1}});
  EXPECT_THAT(freed(), IsEmpty());
  receive(Held{.session = 7, .grants_seen = grant->grant});
  EXPECT_THAT(freed(), UnorderedElementsAre(10, 11));
}

TEST_F(PublisherMachineTest, AHeldSaysNothingOfAGrantThatIsOnItsWay) {
  commit(1, 10, 11);
  join(7);
  const auto first = want(7, 1, 0);
  commit(2, 12, 13);
  const auto second = want(7, 2, 1);
  ASSERT_TRUE(first && second);
  commit(3, 14, 15);
  receive(Held{.session = 7, .grants_seen = first->grant, .numbers = {}});
  EXPECT_THAT(freed(), UnorderedElementsAre(10, 11)) << "version 2 was granted later than the message knows";
  receive(Held{.session = 7, .grants_seen = second->grant, .numbers = {}});
  EXPECT_THAT(freed(), UnorderedElementsAre(12, 13));
}

TEST_F(PublisherMachineTest, AVersionGrantedAgainIsHeldByTheLaterGrant) {
  commit(1, 10, 11);
  join(7);
  const auto lost = want(7, 1, 0);
  const auto again = want(7, 1, 0);
  ASSERT_TRUE(lost && again);
  EXPECT_EQ(again->number, 1u);
  EXPECT_GT(again->grant, lost->grant);
  commit(2, 12, 13);
  receive(Held{.session = 7, .grants_seen = lost->grant});
  EXPECT_THAT(freed(), IsEmpty());
}

TEST_F(PublisherMachineTest, NothingIsGrantedBeforeTheDoorIsOpen) {
  commit(1, 10, 11);
  receive(hello(7));
  const std::uint64_t token = sent<Welcome>().at(0).door_token;
  EXPECT_FALSE(want(7, 1, 0));
  EXPECT_EQ(sent<Refusal>().at(0).code, Code::failed_precondition);
  EXPECT_FALSE(machine_.on_door_open(7, token + 1, at(0))) << "another token";
  EXPECT_FALSE(machine_.on_door_open(8, token, at(0))) << "another session";
  EXPECT_TRUE(machine_.on_door_open(7, token, at(0)));
  EXPECT_FALSE(machine_.on_door_open(7, token, at(0))) << "a second door";
  EXPECT_TRUE(want(7, 2, 0));
}

TEST_F(PublisherMachineTest, AWantForWhatIsHeldAlreadyIsToldToWait) {
  commit(4, 10, 11);
  join(7);
  ASSERT_TRUE(want(7, 1, 0));
  EXPECT_FALSE(want(7, 2, 4));
  ASSERT_THAT(sent<Refusal>(), SizeIs(1));
  EXPECT_EQ(sent<Refusal>()[0].code, Code::not_found);
  EXPECT_EQ(sent<Refusal>()[0].newest, 4u);
  EXPECT_FALSE(want(7, 3, kNumberMax)) << "a huge number is somebody's error, not ours";
}

TEST_F(PublisherMachineTest, AWantThatWaitsIsGrantedWithTheCommitAndBeforeTheNews) {
  join(1);
  const Want waits{.session = 1, .request = 1, .waits = true};
  receive(waits);
  EXPECT_THAT(actions_, IsEmpty());
  commit(1, 10, 11);
  const auto grants = sent<Grant>();
  ASSERT_THAT(grants, SizeIs(1));
  EXPECT_EQ(grants[0].number, 1u);
  EXPECT_EQ(grants[0].request, 1u);
  const auto is_news = [](const PublisherAction& action) { return std::holds_alternative<action::Announce>(action); };
  const auto is_sent = [](const PublisherAction& action) { return std::holds_alternative<action::Send>(action); };
  EXPECT_LT(std::find_if(actions_.begin(), actions_.end(), is_sent),
            std::find_if(actions_.begin(), actions_.end(), is_news));
  // Once.
  commit(2, 12, 13);
  EXPECT_THAT(sent<Grant>(), IsEmpty());
  EXPECT_THAT(freed(), IsEmpty()) << "the first is held";
}

TEST_F(PublisherMachineTest, AWantThatHasAnAnswerDoesNotWaitAndALaterOneTakesItsPlace) {
  join(1);
  commit(1, 10, 11);
  receive(Want{.session = 1, .request = 1, .waits = true});
  EXPECT_THAT(sent<Grant>(), SizeIs(1));
  receive(Want{.session = 1, .request = 2, .after = 1, .waits = true});
  EXPECT_THAT(actions_, IsEmpty());
  receive(Want{.session = 1, .request = 3, .after = 1});
  ASSERT_THAT(sent<Refusal>(), SizeIs(1));
  EXPECT_EQ(sent<Refusal>()[0].code, Code::not_found);
  commit(2, 12, 13);
  EXPECT_THAT(sent<Grant>(), IsEmpty());
}

TEST_F(PublisherMachineTest, AnEveryWantDoesNotWait) {
  join(1, Mode::every);
  receive(Want{.session = 1, .request = 1, .waits = true});
  EXPECT_THAT(sent<Refusal>(), SizeIs(1));
}

TEST_F(PublisherMachineTest, WhatIsStoppedIsNotGrantedWhatItWaitsFor) {
  join(1);
  receive(Want{.session = 1, .request = 1, .waits = true});
  when([&] { machine_.on_tick(at(1000)); });
  commit(1, 10, 11);
  EXPECT_THAT(sent<Grant>(), IsEmpty());
  receive(Ping{.session = 1}, "peer", at(1001));
  EXPECT_THAT(sent<Pong>(), SizeIs(1));
}

TEST_F(PublisherMachineTest, ADoorThatClosedAnswersNobodyWhoWaits) {
  join(1);
  receive(Want{.session = 1, .request = 1, .waits = true});
  when([&] { machine_.on_door_closed(1, at(0)); });
  commit(1, 10, 11);
  EXPECT_THAT(sent<Grant>(), IsEmpty());
  commit(2, 12, 13);
  EXPECT_THAT(freed(), ElementsAre(10, 11));
}

class FollowingMachine : public PublisherMachineTest {
 protected:
  FollowingMachine() : PublisherMachineTest({.model = kModel, .host = "here", .activation = {.follows = true}}) {}
  void see(const Current& pair) {
    when([&] { machine_.on_current_seen(pair, at(0)); });
  }
};

TEST_F(FollowingMachine, WhoHasWhatIsActivatedAnewIsOnlyTold) {
  join(1);
  commit(1, 10, 11);
  see({.epoch = 1, .version = 1});
  receive(Want{.session = 1, .request = 1, .after = 1, .after_epoch = 1, .waits = true});
  EXPECT_THAT(actions_, IsEmpty());
  see({.epoch = 3, .version = 1, .hold = true});
  EXPECT_THAT(sent<Grant>(), IsEmpty());
  EXPECT_THAT(actions_of<action::Announce>(actions_), SizeIs(1));
  commit(2, 12, 13);
  EXPECT_THAT(sent<Grant>(), IsEmpty()) << "held";
  see({.epoch = 4, .version = 2});
  EXPECT_THAT(sent<Grant>(), SizeIs(1));
}

TEST_F(FollowingMachine, WhoeverWaitsIsAnsweredWhenWhatIsCurrentThereHasComeHere) {
  join(1);
  commit(1, 10, 11);
  see({.epoch = 1, .version = 1});
  receive(Want{.session = 1, .request = 1, .after = 1, .after_epoch = 1, .waits = true});
  see({.epoch = 1, .version = 2});
  EXPECT_THAT(sent<Grant>(), IsEmpty());
  EXPECT_THAT(sent<Refusal>(), IsEmpty());
  commit(2, 12, 13);
  EXPECT_THAT(sent<Grant>(), SizeIs(1));
}

TEST_F(PublisherMachineTest, AnOvertakenRequestIsPassedOver) {
  commit(1, 10, 11);
  join(7);
  ASSERT_TRUE(want(7, 5, 0));
  EXPECT_FALSE(want(7, 4, 0));
  EXPECT_THAT(actions_, IsEmpty());
}

TEST_F(PublisherMachineTest, ClosingTheDoorReleasesEverything) {
  commit(1, 10, 11);
  join(7, Mode::every);
  ASSERT_TRUE(want(7, 1, 0));
  commit(2, 12, 13);
  commit(3, 14, 15);
  when([&] { machine_.on_door_closed(7, at(0)); });
  EXPECT_THAT(freed(), UnorderedElementsAre(10, 11, 12, 13));
  EXPECT_FALSE(machine_.knows(7));
  EXPECT_THAT(actions_of<action::CloseDoor>(actions_), IsEmpty());
  receive(Ping{.session = 7});
  EXPECT_THAT(sent<UnknownSession>(), SizeIs(1));
}

TEST_F(PublisherMachineTest, ByeReleasesEverythingAndClosesTheDoor) {
  commit(1, 10, 11);
  join(7);
  ASSERT_TRUE(want(7, 1, 0));
  commit(2, 12, 13);
  receive(Bye{.session = 7});
  EXPECT_THAT(freed(), UnorderedElementsAre(10, 11));
  ASSERT_THAT(actions_of<action::CloseDoor>(actions_), SizeIs(1));
  receive(Bye{.session = 7});
  EXPECT_THAT(actions_, IsEmpty());
}

TEST_F(PublisherMachineTest, AStoppedReaderKeepsItsHoldsHoweverLong) {
  commit(1, 10, 11);
  join(7);
  ASSERT_TRUE(want(7, 1, 0));
  commit(2, 12, 13);
  when([&] { machine_.on_tick(at(60'000)); });
  EXPECT_THAT(freed(), IsEmpty());
  ASSERT_THAT(machine_.sessions(), SizeIs(1));
  EXPECT_TRUE(machine_.sessions()[0].silent);
  EXPECT_THAT(machine_.sessions()[0].held, ElementsAre(1));
  EXPECT_EQ(machine_.next_tick(), Time::max());
  receive(Ping{.session = 7, .serving = 1}, "peer", at(60'001));
  EXPECT_FALSE(machine_.sessions()[0].silent);
}

TEST_F(PublisherMachineTest, ASilentSessionWithoutDoorIsForgotten) {
  receive(hello(7));
  EXPECT_EQ(machine_.next_tick(), at(1000));
  when([&] { machine_.on_tick(at(999)); });
  EXPECT_TRUE(machine_.knows(7));
  when([&] { machine_.on_tick(at(1000)); });
  EXPECT_FALSE(machine_.knows(7));
}

TEST_F(PublisherMachineTest, ASessionBelongsToThePeerThatSaidHello) {
  commit(1, 10, 11);
  join(7);
  ASSERT_TRUE(want(7, 1, 0));
  commit(2, 12, 13);
  for (const Message& forged : {Message(Held{.session = 7, .grants_seen = 99}), Message(Bye{.session = 7}),
                                Message(Want{.session = 7, .request = 9}), Message(hello(7))}) {
    receive(forged, "forger");
    EXPECT_THAT(freed(), IsEmpty());
    EXPECT_THAT(sent<Grant>(), IsEmpty());
    EXPECT_THAT(sent<Welcome>(), IsEmpty());
  }
  EXPECT_TRUE(machine_.knows(7));
}

TEST_F(PublisherMachineTest, ItsTokenTakesASessionToAnotherConnection) {
  commit(1, 10, 11);
  join(7);
  const auto grant = want(7, 1, 0);
  commit(2, 12, 13);
  Hello claim = hello(7);
  claim.door_token = token_;
  receive(claim, "peer after the break");
  EXPECT_THAT(sent<Welcome>(), SizeIs(1));
  receive(Held{.session = 7, .grants_seen = grant->grant}, "peer");
  EXPECT_THAT(sent<UnknownSession>(), SizeIs(1));
  EXPECT_THAT(freed(), IsEmpty());
  receive(Held{.session = 7, .grants_seen = grant->grant}, "peer after the break");
  EXPECT_THAT(freed(), UnorderedElementsAre(10, 11));
  claim.session = 8;
  receive(claim, "peer");
  EXPECT_THAT(sent<UnknownSession>(), SizeIs(1)) << "a claim makes no session";
  EXPECT_FALSE(machine_.knows(8));
}

TEST_F(PublisherMachineTest, AHelloThatCannotBeServedIsRefusedWithItsReason) {
  Hello other = hello(7);
  other.protocol = 99;
  receive(other);
  EXPECT_EQ(sent<Refusal>().at(0).code, Code::unsupported);
  other = hello(7);
  other.host = "elsewhere";
  receive(other);
  EXPECT_EQ(sent<Refusal>().at(0).code, Code::unsupported);
  other = hello(7);
  other.model = "another";
  receive(other);
  EXPECT_EQ(sent<Refusal>().at(0).code, Code::not_found);
  other = hello(7);
  other.highest_seen = kNumberMax;
  receive(other);
  EXPECT_EQ(sent<Refusal>().at(0).code, Code::invalid_argument);
  EXPECT_THAT(machine_.sessions(), IsEmpty());
  EXPECT_EQ(machine_.number_floor(), 0u);
}

TEST_F(PublisherMachineTest, NumbersGoOnAboveWhatAnySubscriberHasSeen) {
  Hello ahead = hello(7);
  ahead.highest_seen = 41;
  receive(ahead);
  EXPECT_EQ(machine_.number_floor(), 41u);
  commit(42, 10, 11);
  EXPECT_EQ(machine_.number_floor(), 42u);
}

TEST_F(PublisherMachineTest, OneConnectionHasOneSessionThatIsNotYetThroughTheDoor) {
  for (SessionId session = 1; session <= 100; ++session) receive(hello(session));
  EXPECT_THAT(machine_.sessions(), SizeIs(1));
  EXPECT_TRUE(machine_.knows(100));
}

class FewSessions : public PublisherMachineTest {
 protected:
  FewSessions()
      : PublisherMachineTest({.model = kModel, .host = "here", .sessions_max = 2, .holds_per_session_max = 2}) {}
};

TEST_F(FewSessions, SessionsHaveALimit) {
  join(1, Mode::latest, 0, "a");
  join(2, Mode::latest, 0, "b");
  receive(hello(3), "c");
  EXPECT_EQ(sent<Refusal>().at(0).code, Code::out_of_space);
  when([&] { machine_.on_door_closed(1, at(0)); });
  receive(hello(3), "c");
  EXPECT_THAT(sent<Welcome>(), SizeIs(1));
}

TEST_F(FewSessions, ASessionThatLetsNothingGoIsRefusedUntilItDoes) {
  join(1);
  for (VersionNumber number = 1; number <= 3; ++number) {
    const auto segment = static_cast<SegmentIndex>(10 * number);
    commit(number, segment, segment + 1);
    EXPECT_EQ(want(1, number, number - 1).has_value(), number < 3);
  }
  EXPECT_EQ(sent<Refusal>().at(0).code, Code::out_of_space);
  receive(Held{.session = 1, .grants_seen = 2, .numbers = {2}});
  EXPECT_TRUE(want(1, 4, 2));
}

TEST_F(PublisherMachineTest, EveryVersionComesInOrderAndALostGrantComesAgain) {
  join(7, Mode::every);
  commit(1, 10, 11);
  commit(2, 12, 13);
  EXPECT_EQ(want(7, 1, 0)->number, 1u);
  EXPECT_EQ(want(7, 1, 0)->number, 1u) << "the answer was lost";
  const auto second = want(7, 2, 1);
  EXPECT_EQ(second->number, 2u);
  EXPECT_EQ(second->gap_before, 0u);
  EXPECT_FALSE(want(7, 3, 2));
}

TEST_F(PublisherMachineTest, PastTheQueuesLimitTheOldestGoAndAreCounted) {
  join(7, Mode::every);
  commit(1, 10, 11);
  EXPECT_EQ(want(7, 1, 0)->number, 1u);
  for (VersionNumber number = 2; number <= 9; ++number) {
    commit(number, static_cast<SegmentIndex>(10 * number), static_cast<SegmentIndex>(10 * number + 1));
  }
  EXPECT_EQ(machine_.sessions()[0].queued_versions, 3u);
  const auto next = want(7, 2, 1);
  ASSERT_TRUE(next);
  EXPECT_EQ(next->number, 8u) << "version 1 was granted and not yet acknowledged, so it counted";
  EXPECT_EQ(next->gap_before, 6u);
  EXPECT_EQ(want(7, 3, 8)->gap_before, 0u);
}

TEST_F(PublisherMachineTest, GapsAreCountedInVersionsNotInNumbers) {
  join(7, Mode::every);
  commit(10, 10, 11);
  ASSERT_TRUE(want(7, 1, 0));
  commit(20, 12, 13);  // Nothing was ever committed between 10 and 20.
  EXPECT_EQ(want(7, 2, 10)->gap_before, 0u);
  commit(30, 14, 15);
  commit(40, 16, 17);
  when([&] { machine_.shed_queues(1, at(0)); });
  EXPECT_EQ(want(7, 3, 20)->gap_before, 1u);
}

TEST_F(PublisherMachineTest, ALateEverySubscriberGetsWhatThereIs) {
  commit(5, 10, 11);
  join(7, Mode::every);
  const auto first = want(7, 1, 0);
  EXPECT_EQ(first->number, 5u);
  EXPECT_EQ(first->gap_before, 0u) << "nothing had been promised";
  join(8, Mode::every, 3, "restarted sink");
  EXPECT_EQ(want(8, 1, 3, "restarted sink")->gap_before, 1u) << "4 may have been the life's before";
}

TEST_F(PublisherMachineTest, SilentSessionsAreShedFirst) {
  commit(1, 10, 11);
  join(7, Mode::every, 1, "asleep");
  commit(2, 20, 21);
  commit(3, 30, 31);
  when([&] { machine_.on_tick(at(2000)); });
  join(8, Mode::every, 2, "awake");  // Waits for 3, as the silent one does.
  receive(Ping{.session = 8}, "awake", at(2000));
  commit(4, 40, 41);
  when([&] { machine_.shed_queues(1, at(2000)); });
  EXPECT_THAT(freed(), UnorderedElementsAre(20, 21)) << "only the silent one waits for 2";
  when([&] { machine_.shed_queues(1, at(2000)); });
  EXPECT_THAT(freed(), UnorderedElementsAre(30, 31)) << "and then, both";
  when([&] { machine_.shed_queues(1000, at(2000)); });
  EXPECT_THAT(freed(), IsEmpty()) << "the newest is never shed";
  EXPECT_EQ(want(8, 1, 2, "awake")->gap_before, 1u);
}

TEST_F(PublisherMachineTest, WhatIsHeldIsNotShedAndSheddingStopsWhenEnough) {
  commit(1, 10, 11);
  join(7, Mode::every);
  ASSERT_TRUE(want(7, 1, 0));
  commit(2, 20, 21);
  commit(3, 30, 31);
  when([&] { machine_.shed_queues(kTensorBytes, at(0)); });
  EXPECT_THAT(freed(), UnorderedElementsAre(20, 21));
  receive(Held{.session = 7, .grants_seen = 1, .numbers = {1}});
  when([&] { machine_.shed_queues(1000, at(0)); });
  EXPECT_THAT(freed(), IsEmpty());
  EXPECT_EQ(machine_.sessions()[0].gaps, 1u);
}

TEST_F(PublisherMachineTest, AHeldOfThingsNeverGrantedChangesNothing) {
  commit(1, 10, 11);
  join(7);
  receive(Held{.session = 7, .grants_seen = ~std::uint64_t{0}, .numbers = {1, 2, 3, ~std::uint64_t{0}}});
  EXPECT_THAT(machine_.sessions()[0].held, IsEmpty());
  commit(2, 12, 13);
  EXPECT_THAT(freed(), UnorderedElementsAre(10, 11));
}

TEST_F(PublisherMachineTest, AKnownArchitectureIsNotSentAgain) {
  commit(1, 10, 11);
  join(7);
  receive(Want{.session = 7, .request = 1, .known_architectures = {two_tensors()->digest()}});
  ASSERT_THAT(sent<Grant>(), SizeIs(1));
  EXPECT_THAT(sent<Grant>()[0].architecture, IsEmpty());
}

}  // namespace
}  // namespace freshet::protocol::test
