// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/transport/protocol/leases_fixture.h"
#include "transport/protocol/publisher/publisher_machine.h"

namespace freshet::protocol::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

constexpr std::uint32_t kZmqOrMemory = bit(ChannelKind::zmq) | bit(ChannelKind::shm);

TEST_F(PublisherLeases, AnotherHostIsOfferedChannelsAndNoDoor) {
  join(1);
  const Welcome welcome = sent<Welcome>()[0];
  EXPECT_EQ(welcome.door, "");
  EXPECT_EQ(welcome.lease_ms, 3000u);
  EXPECT_THAT(welcome.channels, ElementsAre(ChannelOffer{.kind = ChannelKind::zmq, .address = "tcp://a"}));
  receive(Hello{.session = 2, .model = kModel, .host = "here", .channels = kZmqOrMemory}, 0, "near");
  EXPECT_EQ(sent<Welcome>().at(0).door, "door");
  receive(Hello{.session = 3, .model = kModel, .host = "elsewhere", .channels = bit(ChannelKind::ucx)}, 0, "third");
  ASSERT_THAT(sent<Refusal>(), SizeIs(1));
  EXPECT_THAT(sent<Refusal>()[0].message, HasSubstr("no channel is common"));
}

TEST_F(PublisherLeases, AChannelThatAHelloDoesNotNameIsNotOfferedSinceItsPeerMayBeOlderThanTheKind) {
  PublisherMachine::Options newer = options();
  newer.channels.push_back({.kind = static_cast<ChannelKind>(kChannelKindLast + 1), .address = "new"});
  machine_ = std::make_unique<PublisherMachine>(newer);
  join(1);
  const auto welcome = decode(encode(Message(sent<Welcome>().at(0))));
  ASSERT_TRUE(welcome) << welcome.error().message();
  EXPECT_THAT(std::get<Welcome>(*welcome).channels,
              ElementsAre(ChannelOffer{.kind = ChannelKind::zmq, .address = "tcp://a"}));
}

TEST_F(PublisherLeases, AGrantToFetchCarriesALeaseThatWasOpenedBeforeAndNoPlaces) {
  commit(1);
  join(1);
  const auto grant = want(1, 1, 0);
  ASSERT_TRUE(grant);
  EXPECT_NE(grant->lease, 0u);
  EXPECT_EQ(grant->channel, ChannelKind::zmq);
  EXPECT_THAT(grant->places, IsEmpty());
  EXPECT_THAT(grant->slab_bytes, IsEmpty());
  ASSERT_THAT(actions_, SizeIs(2));
  const auto* open = std::get_if<action::OpenLease>(&actions_[0]);
  ASSERT_NE(open, nullptr);
  EXPECT_EQ(open->lease, grant->lease);
  EXPECT_EQ(open->session, 1u);
  EXPECT_EQ(open->number, 1u);
}

TEST_F(PublisherLeases, ARepeatedWantGetsTheSameLeaseAndOthersGetOthers) {
  commit(1);
  join(1);
  const auto first = want(1, 1, 0);
  const auto again = want(1, 1, 0);
  EXPECT_EQ(again->lease, first->lease);
  EXPECT_GT(again->grant, first->grant);
  EXPECT_THAT(actions<action::OpenLease>(), IsEmpty());
  std::set<LeaseId> leases{first->lease};
  for (SessionId session = 2; session < 50; ++session) {
    join(session, Mode::latest, 0, 0, "peer" + std::to_string(session));
    receive(Want{.session = session, .request = 1, .channel = ChannelKind::zmq}, 0, "peer" + std::to_string(session));
    leases.insert(sent<Grant>().at(0).lease);
  }
  EXPECT_THAT(leases, SizeIs(49));
}

TEST_F(PublisherLeases, TheHoldGoesWhenTheShellSaysThatNothingIsReadAndNotBefore) {
  commit(1);
  join(1);
  const auto grant = want(1, 1, 0);
  commit(2);
  EXPECT_THAT(freed(), IsEmpty());
  receive(Held{.session = 1, .grants_seen = grant->grant});
  ASSERT_THAT(actions<action::CloseLease>(), SizeIs(1));
  EXPECT_EQ(actions<action::CloseLease>()[0].lease, grant->lease);
  EXPECT_FALSE(actions<action::CloseLease>()[0].by_force);
  EXPECT_THAT(freed(), IsEmpty()) << "its bytes may be on their way still";
  lease_closed(grant->lease);
  EXPECT_THAT(freed(), UnorderedElementsAre(2, 3));
  lease_closed(grant->lease);
  EXPECT_THAT(actions_, IsEmpty());
}

TEST_F(PublisherLeases, WhatIsSaidOfAnOpenOrUnknownLeaseChangesNothing) {
  commit(1);
  join(1);
  const auto grant = want(1, 1, 0);
  commit(2);
  lease_closed(grant->lease);
  lease_closed(12345);
  EXPECT_THAT(freed(), IsEmpty());
}

TEST_F(PublisherLeases, AVersionGrantedAgainWhileItsLeaseClosesGetsANewOne) {
  commit(1);
  join(1);
  const auto first = want(1, 1, 0);
  receive(Held{.session = 1, .grants_seen = first->grant});
  const auto second = want(1, 2, 0);
  EXPECT_NE(second->lease, first->lease);
  commit(2);
  lease_closed(first->lease);
  EXPECT_THAT(freed(), IsEmpty());
  receive(Held{.session = 1, .grants_seen = second->grant});
  lease_closed(second->lease);
  EXPECT_THAT(freed(), UnorderedElementsAre(2, 3));
}

TEST_F(PublisherLeases, SilenceEndsASessionThatFetchesByForce) {
  commit(1);
  join(1);
  const auto grant = want(1, 1, 0);
  EXPECT_EQ(machine_->next_tick(), at(1000));
  tick(1000);
  EXPECT_TRUE(machine_->sessions().at(0).silent);
  EXPECT_EQ(machine_->next_tick(), at(3000));
  tick(2999);
  EXPECT_THAT(actions<action::CloseLease>(), IsEmpty());
  tick(3000);
  ASSERT_THAT(actions<action::CloseLease>(), SizeIs(1));
  EXPECT_TRUE(actions<action::CloseLease>()[0].by_force);
  EXPECT_THAT(machine_->sessions(), IsEmpty());
  EXPECT_EQ(machine_->next_tick(), Time::max());
  commit(2);
  EXPECT_THAT(freed(), IsEmpty()) << "the shell has not cut it off yet";
  lease_closed(grant->lease);
  EXPECT_THAT(freed(), UnorderedElementsAre(2, 3));
}

TEST_F(PublisherLeases, AWordKeepsASessionThatFetches) {
  commit(1);
  join(1);
  want(1, 1, 0);
  receive(Ping{.session = 1}, 2900);
  tick(3000);
  EXPECT_THAT(machine_->sessions(), SizeIs(1));
  EXPECT_THAT(actions<action::CloseLease>(), IsEmpty());
}

TEST_F(PublisherLeases, ByeClosesByForceAlsoWhatWasClosing) {
  commit(1);
  join(1);
  const auto grant = want(1, 1, 0);
  receive(Held{.session = 1, .grants_seen = grant->grant});
  receive(Bye{.session = 1});
  ASSERT_THAT(actions<action::CloseLease>(), SizeIs(1));
  EXPECT_TRUE(actions<action::CloseLease>()[0].by_force);
}

TEST_F(PublisherLeases, AChannelThatIsNotInCommonIsRefused) {
  commit(1);
  join(1);
  EXPECT_FALSE(want(1, 1, 0, 0, ChannelKind::ucx));
  EXPECT_EQ(sent<Refusal>().at(0).code, Code::failed_precondition);
  EXPECT_FALSE(want(1, 2, 0, 0, ChannelKind::shm)) << "it has no door";
  receive(Hello{.session = 2, .model = kModel, .host = "here"}, 0, "near");
  receive(Want{.session = 2, .request = 1, .channel = ChannelKind::zmq}, 0, "near");
  EXPECT_EQ(sent<Refusal>().at(0).code, Code::failed_precondition) << "it did not say that it can";
}

TEST_F(PublisherLeases, ASessionMayChangeItsChannelBetweenWants) {
  commit(1);
  receive(Hello{.session = 1, .model = kModel, .host = "here", .channels = kZmqOrMemory});
  ASSERT_TRUE(machine_->on_door_open(1, sent<Welcome>().at(0).door_token, at(0)));
  const auto mapped = want(1, 1, 0, 0, ChannelKind::shm);
  ASSERT_TRUE(mapped);
  EXPECT_EQ(mapped->lease, 0u);
  const auto fetched = want(1, 2, 0, 0, ChannelKind::zmq);
  ASSERT_TRUE(fetched);
  EXPECT_NE(fetched->lease, 0u);
  commit(2);
  tick(3000);  // Silent: the lease is over, the door stands.
  ASSERT_THAT(actions<action::CloseLease>(), SizeIs(1));
  lease_closed(fetched->lease);
  EXPECT_THAT(freed(), IsEmpty()) << "it may have it mapped";
  EXPECT_THAT(machine_->sessions(), SizeIs(1));
  EXPECT_EQ(machine_->next_tick(), Time::max());
  receive(Held{.session = 1, .grants_seen = fetched->grant});
  EXPECT_THAT(freed(), UnorderedElementsAre(2, 3));
}

TEST_F(PublisherLeases, AnEverySessionThatCanFetchOutlivesItsDoorAndHandsItsQueueOver) {
  receive(Hello{.session = 1, .model = kModel, .mode = Mode::every, .host = "here", .channels = kZmqOrMemory});
  ASSERT_TRUE(machine_->on_door_open(1, sent<Welcome>().at(0).door_token, at(0)));
  commit(1);
  commit(2);
  commit(3);
  when([&] { machine_->on_door_closed(1, at(0)); });
  EXPECT_THAT(freed(), IsEmpty());
  // It comes back over the same connection, with a new session.
  receive(
      Hello{.session = 2, .model = kModel, .mode = Mode::every, .host = "here", .after = 0, .channels = kZmqOrMemory});
  EXPECT_THAT(freed(), IsEmpty());
  EXPECT_THAT(machine_->sessions(), SizeIs(1));
  EXPECT_EQ(want(2, 1, 0)->number, 1u);
  EXPECT_EQ(want(2, 2, 1)->number, 2u);
}

TEST_F(PublisherLeases, AnEverySessionGetsItsVersionAgainUntilItSaysThatItHasIt) {
  join(1, Mode::every);
  commit(1);
  commit(2);
  const auto first = want(1, 1, 0);
  ASSERT_EQ(first->number, 1u);
  receive(Held{.session = 1, .grants_seen = first->grant});  // The fetch failed.
  lease_closed(first->lease);
  EXPECT_THAT(freed(), IsEmpty());
  EXPECT_EQ(want(1, 2, 0)->number, 1u);
  const auto second = want(1, 3, 1);
  EXPECT_EQ(second->number, 2u);
  EXPECT_EQ(second->gap_before, 0u);
}

TEST_F(PublisherLeases, TooManyLeasesOfASessionAreRefused) {
  PublisherMachine::Options few = options();
  few.leases_per_session_max = 2;
  machine_ = std::make_unique<PublisherMachine>(few);
  commit(1);
  join(1);
  for (std::uint64_t request = 1; request <= 2; ++request) {
    const auto grant = want(1, request, 0);
    ASSERT_TRUE(grant);
    receive(Held{.session = 1, .grants_seen = grant->grant});  // And the shell takes its time to close it.
  }
  EXPECT_FALSE(want(1, 3, 0));
  EXPECT_EQ(sent<Refusal>().at(0).code, Code::out_of_space);
  EXPECT_THAT(sent<Refusal>().at(0).message, HasSubstr("2 leases"));
}

TEST_F(PublisherLeases, NothingThatALeaseHoldsIsShedInVain) {
  join(1, Mode::every);
  commit(1);
  commit(2);
  commit(3);
  want(1, 1, 0);
  when([&] { machine_->shed_queues(1, at(0)); });
  EXPECT_THAT(freed(), UnorderedElementsAre(4, 5)) << "version 1 is being fetched, 2 is not";
}

TEST_F(PublisherLeases, WhatIsNumberedBelowWhatHasComeDoesNotWait) {
  join(1, Mode::every, /*after=*/9);
  commit(3);
  commit(4);
  EXPECT_THAT(freed(), UnorderedElementsAre(6, 7));
  EXPECT_EQ(machine_->sessions().at(0).queued_versions, 0u);
  commit(10);
  EXPECT_EQ(want(1, 1, 9)->number, 10u);
}

TEST_F(PublisherLeases, ARelaySaysWhatItMissedItself) {
  join(1, Mode::every);
  commit(10);
  EXPECT_EQ(want(1, 1, 9)->gap_before, 0u);
  commit(20, /*missed_before=*/4);
  EXPECT_EQ(want(1, 2, 10)->gap_before, 4u);
  commit(21);
  EXPECT_EQ(want(1, 3, 20)->gap_before, 0u);
}

TEST_F(PublisherLeases, AHelloOfAKnownSessionRaisesTheFloorToo) {
  join(1);
  receive(
      Hello{.session = 1, .model = kModel, .host = "elsewhere", .highest_seen = 77, .channels = bit(ChannelKind::zmq)});
  EXPECT_EQ(machine_->number_floor(), 77u);
}

class PublisherRetains : public PublisherLeases {
 protected:
  PublisherRetains() : PublisherLeases(/*retained=*/3) {}
};

TEST_F(PublisherRetains, TheLastVersionsAreKeptAndTheOldestGoesFirst) {
  commit(1);
  commit(2);
  commit(3);
  EXPECT_THAT(freed(), IsEmpty());
  commit(4);
  EXPECT_THAT(freed(), UnorderedElementsAre(2, 3));
  EXPECT_THAT(machine_->versions().numbers(), ElementsAre(2, 3, 4));
  join(1, Mode::every, 1);
  EXPECT_EQ(want(1, 1, 1)->number, 2u) << "a late one gets what is kept";
}

TEST_F(PublisherRetains, RoomIsTakenFromThemBeforeAnyQueueAndNeverTheNewest) {
  commit(1);
  commit(2);
  join(1, Mode::every, 1);  // Waits for 2.
  commit(3);
  when([&] { machine_->shed_queues(1, at(0)); });
  EXPECT_THAT(freed(), UnorderedElementsAre(2, 3));
  EXPECT_EQ(machine_->sessions().at(0).gaps, 0u);
  when([&] { machine_->shed_queues(1 << 20, at(0)); });
  EXPECT_THAT(freed(), UnorderedElementsAre(4, 5));
  EXPECT_THAT(machine_->versions().numbers(), ElementsAre(3));
}

class RelayLeases : public PublisherLeases {
 protected:
  RelayLeases() {
    machine_ = std::make_unique<PublisherMachine>([] {
      PublisherMachine::Options relay = options();
      relay.activation.follows = true;
      return relay;
    }());
  }
  void see(VersionNumber number) {
    when([&] { machine_->on_current_seen({.version = number}, at(0)); });
  }
  void comes(VersionNumber number) {
    CommittedVersion coming = version(number, 0, 1);
    coming.segments.clear();
    coming.places.clear();
    when([&] { machine_->on_coming(std::move(coming), at(0)); });
  }
};

TEST_F(RelayLeases, WhatIsComingIsGrantedToWhoFetches) {
  join(1);
  see(1);
  EXPECT_FALSE(want(1, 1, 0)) << "it is current, and nothing of it is here";
  comes(1);
  EXPECT_THAT(actions<action::Announce>(), SizeIs(1)) << "so that who asked too early asks again";
  const auto grant = want(1, 2, 0);
  ASSERT_TRUE(grant);
  EXPECT_EQ(grant->number, 1u);
  EXPECT_THAT(grant->places, IsEmpty());
  ASSERT_THAT(actions<action::OpenLease>(), SizeIs(1));
  EXPECT_TRUE(actions<action::OpenLease>()[0].coming);
  EXPECT_EQ(machine_->versions().newest(), nullptr);
}

TEST_F(RelayLeases, WhatIsComingIsNotMappedNorQueued) {
  when([&] {
    machine_->on_message("near", Hello{.session = 2, .model = kModel, .host = "here", .channels = kZmqOrMemory}, at(0));
  });
  const std::uint64_t token = sent<Welcome>().at(0).door_token;
  ASSERT_TRUE(machine_->on_door_open(2, token, at(0)));
  join(3, Mode::every, 0, 0, "other");
  see(1);
  comes(1);
  receive(Want{.session = 2, .request = 1, .channel = ChannelKind::shm}, 0, "near");
  EXPECT_THAT(sent<Grant>(), IsEmpty());
  receive(Want{.session = 3, .request = 1, .channel = ChannelKind::zmq}, 0, "other");
  EXPECT_THAT(sent<Grant>(), IsEmpty());
  commit(1);
  receive(Want{.session = 2, .request = 2, .channel = ChannelKind::shm}, 0, "near");
  EXPECT_THAT(sent<Grant>(), SizeIs(1));
  receive(Want{.session = 3, .request = 2, .channel = ChannelKind::zmq}, 0, "other");
  EXPECT_THAT(sent<Grant>(), SizeIs(1));
}

TEST_F(RelayLeases, OneThatCameGoesOnUnderItsLeaseAndHoldsNothing) {
  join(1);
  see(1);
  comes(1);
  const LeaseId lease = want(1, 1, 0)->lease;
  commit(1);
  EXPECT_THAT(actions<action::CloseLease>(), IsEmpty());
  see(2);
  commit(2);
  EXPECT_THAT(freed(), UnorderedElementsAre(2, 3)) << "its memory is kept by whoever fetches it";
  receive(Held{.session = 1, .grants_seen = 1});
  ASSERT_THAT(actions<action::CloseLease>(), SizeIs(1));
  EXPECT_EQ(actions<action::CloseLease>()[0].lease, lease);
  lease_closed(lease);
  EXPECT_THAT(freed(), IsEmpty());
}

TEST_F(RelayLeases, OneThatDoesNotComeAnyMoreIsClosedAndGivenAnew) {
  join(1);
  see(1);
  comes(1);
  const LeaseId lease = want(1, 1, 0)->lease;
  when([&] { machine_->on_not_coming(1, at(0)); });
  ASSERT_THAT(actions<action::CloseLease>(), SizeIs(1));
  EXPECT_EQ(actions<action::CloseLease>()[0].lease, lease);
  EXPECT_FALSE(want(1, 2, 0));
  comes(1);
  const auto again = want(1, 3, 0);
  ASSERT_TRUE(again);
  EXPECT_NE(again->lease, lease) << "nothing can be fetched under the old one";
  lease_closed(lease);
}

TEST_F(RelayLeases, ASessionThatEndsTakesItsLeaseOfWhatIsComingAlong) {
  join(1);
  see(1);
  comes(1);
  const LeaseId lease = want(1, 1, 0)->lease;
  receive(Bye{.session = 1});
  ASSERT_THAT(actions<action::CloseLease>(), SizeIs(1));
  when([&] { machine_->on_not_coming(1, at(0)); });
  EXPECT_THAT(actions<action::CloseLease>(), IsEmpty());
  lease_closed(lease);
}

}  // namespace
}  // namespace freshet::protocol::test
