// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/transport/protocol/subscriber_fixture.h"

namespace freshet::protocol::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr std::uint32_t kAllChannels = bit(ChannelKind::shm) | bit(ChannelKind::ucx) | bit(ChannelKind::zmq);
const ChannelOffer kUcx{.kind = ChannelKind::ucx, .address = "u"};
const ChannelOffer kZmq{.kind = ChannelKind::zmq, .address = "tcp://z"};

class SubscriberChannels : public SubscriberMachineTest {
 protected:
  explicit SubscriberChannels(Mode mode = Mode::latest)
      : SubscriberMachineTest({.model = kModel,
                               .mode = mode,
                               .session_seed = 1,
                               .installs_in_flight_max = 8,
                               .channels = {.usable = kAllChannels, .trusted_fabric = true}}) {}

  /// Lets every tick happen that is due up to `ms`; what was said meanwhile is in actions_.
  void pass(std::int64_t ms) {
    std::vector<SubscriberAction> all;
    while (machine_.next_tick() <= at(ms)) {
      machine_.on_tick(machine_.next_tick());
      for (auto& action : machine_.take_actions()) all.push_back(std::move(action));
    }
    actions_ = std::move(all);
  }
  void welcome(std::vector<ChannelOffer> offers, const std::string& door = "", VersionNumber newest = 1,
               std::int64_t ms = 0, std::uint64_t incarnation = kIncarnation) {
    receive(Welcome{.session = session_,
                    .incarnation = incarnation,
                    .door = door,
                    .door_token = 77,
                    .newest = newest,
                    .channels = std::move(offers)},
            ms);
  }
  void greet(std::vector<ChannelOffer> offers, const std::string& door = "", VersionNumber newest = 1) {
    when([&] { machine_.on_start(at(0)); });
    ASSERT_THAT(sent<Hello>(), SizeIs(1));
    EXPECT_EQ(sent<Hello>()[0].channels, kAllChannels);
    session_ = sent<Hello>()[0].session;
    welcome(std::move(offers), door, newest);
  }
  void channel_opens(std::int64_t ms = 0) {
    when([&] { machine_.on_channel_open(session_, at(ms)); });
  }
  void channel_dies(std::int64_t ms = 0) {
    when([&] { machine_.on_channel_closed(session_, Error(Code::unavailable, "connection reset"), at(ms)); });
  }
  void grant(VersionNumber number, std::int64_t ms = 0) {
    ASSERT_THAT(sent<Want>(), SizeIs(1));
    const Want want = sent<Want>()[0];
    receive(Grant{.session = want.session,
                  .request = want.request,
                  .grant = ++grants_,
                  .number = number,
                  .channel = want.channel,
                  .lease = want.channel == ChannelKind::shm ? 0 : 500 + grants_},
            ms);
    ASSERT_THAT(actions<action::Install>(), SizeIs(1));
  }
};

TEST_F(SubscriberChannels, WithoutADoorAChannelIsOpenedAndWantsNameIt) {
  greet({kUcx, kZmq});
  ASSERT_THAT(actions<action::OpenChannel>(), SizeIs(1));
  const action::OpenChannel open = actions<action::OpenChannel>()[0];
  EXPECT_EQ(open.offer, kUcx);
  EXPECT_THAT(open.why, HasSubstr("trusted"));
  EXPECT_THAT(actions<action::OpenDoor>(), IsEmpty());
  EXPECT_THAT(sent<Want>(), IsEmpty());
  channel_opens();
  ASSERT_THAT(sent<Want>(), SizeIs(1));
  EXPECT_EQ(sent<Want>()[0].channel, ChannelKind::ucx);
  EXPECT_THAT(sent<Ping>(), SizeIs(1));
}

TEST_F(SubscriberChannels, WhatWasFetchedIsLetGoAtOnce) {
  greet({kZmq});
  channel_opens();
  grant(1);
  installed(1, {});
  ASSERT_THAT(sent<Held>(), SizeIs(1));
  EXPECT_EQ(sent<Held>()[0].grants_seen, 1u);
  EXPECT_THAT(sent<Held>()[0].numbers, IsEmpty());
  EXPECT_EQ(machine_.position().serving(), 1u);
  when([&] { machine_.on_unpinned(session_, 1, at(0)); });
  EXPECT_THAT(actions_, IsEmpty());
}

TEST_F(SubscriberChannels, WhileAFetchGoesOnHeartbeatsDoAndNothingElseIsAskedFor) {
  greet({kZmq});
  channel_opens();
  grant(1);
  receive(Pong{.session = session_, .incarnation = kIncarnation, .newest = 9}, 100);
  EXPECT_THAT(sent<Want>(), IsEmpty());
  pass(700);
  EXPECT_THAT(sent<Ping>(), SizeIs(2));
  for (const Held& held : sent<Held>()) EXPECT_THAT(held.numbers, ElementsAre(1));
  EXPECT_THAT(sent<Want>(), IsEmpty());
}

TEST_F(SubscriberChannels, AChannelThatDiesMidFetchGivesWayToTheNextBest) {
  greet({kUcx, kZmq});
  channel_opens();
  grant(1);
  channel_dies(10);
  ASSERT_THAT(actions<action::OpenChannel>(), SizeIs(1));
  EXPECT_EQ(actions<action::OpenChannel>()[0].offer, kZmq);
  EXPECT_EQ(actions<action::OpenChannel>()[0].session, session_) << "the session stays: its queue is needed";
  EXPECT_THAT(actions<action::CloseChannel>(), IsEmpty()) << "it is closed already";
  EXPECT_THAT(sent<Hello>(), SizeIs(1)) << "perhaps the publisher is gone";
  EXPECT_EQ(sent<Hello>()[0].door_token, 77u);
  installed(1, fail(Code::unavailable, "the channel died"), 11);
  EXPECT_THAT(sent<Held>(), SizeIs(1));
  welcome({kUcx, kZmq}, "", 1, 20);
  channel_opens(300);
  ASSERT_THAT(sent<Want>(), SizeIs(1));
  EXPECT_EQ(sent<Want>()[0].after, 0u);
  EXPECT_EQ(sent<Want>()[0].channel, ChannelKind::zmq);
}

TEST_F(SubscriberChannels, AGrantForAChannelThatIsGoneIsGivenBack) {
  greet({kUcx, kZmq});
  channel_opens();
  const Want want = sent<Want>().at(0);
  channel_dies(10);
  receive(Grant{.session = session_,
                .request = want.request,
                .grant = 1,
                .number = 1,
                .channel = ChannelKind::ucx,
                .lease = 5},
          20);
  EXPECT_THAT(actions<action::Install>(), IsEmpty());
  ASSERT_THAT(sent<Held>(), SizeIs(1));
  EXPECT_THAT(sent<Held>()[0].numbers, IsEmpty());
}

TEST_F(SubscriberChannels, AGrantOfAnotherChannelThanWasAskedForIsGivenBack) {
  greet({kZmq});
  channel_opens();
  const Want want = sent<Want>().at(0);
  receive(Grant{.session = session_, .request = want.request, .grant = 1, .number = 1});
  EXPECT_THAT(actions<action::Install>(), IsEmpty());
}

TEST_F(SubscriberChannels, ABetterChannelIsGoneBackToBetweenTwoVersions) {
  greet({kUcx, kZmq});
  channel_dies(0);
  ASSERT_EQ(actions<action::OpenChannel>().at(0).offer, kZmq);
  channel_opens(10);
  grant(1, 10);
  installed(1, {}, 20);
  EXPECT_THAT(actions<action::OpenChannel>(), IsEmpty()) << "its pause is not over";
  receive(Pong{.session = session_, .incarnation = kIncarnation, .newest = 1}, 900);
  pass(1300);
  ASSERT_THAT(actions<action::OpenChannel>(), SizeIs(1));
  EXPECT_EQ(actions<action::OpenChannel>()[0].offer, kUcx);
  EXPECT_THAT(actions<action::CloseChannel>(), SizeIs(1));
}

TEST_F(SubscriberChannels, AChannelThatDoesNotOpenIsGivenUp) {
  greet({kUcx, kZmq});
  receive(Pong{.session = session_, .incarnation = kIncarnation, .newest = 1}, 999);
  receive(Pong{.session = session_, .incarnation = kIncarnation, .newest = 1}, 1900);
  pass(2000);
  EXPECT_THAT(actions<action::CloseChannel>(), SizeIs(1));
  ASSERT_THAT(actions<action::OpenChannel>(), SizeIs(1));
  EXPECT_EQ(actions<action::OpenChannel>()[0].offer, kZmq);
}

TEST_F(SubscriberChannels, ADoorThatDoesNotOpenGivesWayToAChannelInTheSameSession) {
  greet({kZmq}, "door");
  ASSERT_THAT(actions<action::OpenDoor>(), SizeIs(1));
  when([&] { machine_.on_door_closed(session_, at(5)); });
  ASSERT_THAT(actions<action::OpenChannel>(), SizeIs(1));
  EXPECT_EQ(actions<action::OpenChannel>()[0].session, session_);
  EXPECT_THAT(sent<Hello>(), IsEmpty());
  channel_opens(10);
  EXPECT_THAT(sent<Want>(), SizeIs(1));
}

TEST_F(SubscriberChannels, TheOnlyChannelIsTriedAgainAfterAPause) {
  greet({kZmq});
  channel_dies(0);
  EXPECT_THAT(actions<action::OpenChannel>(), IsEmpty());
  receive(Pong{.session = session_, .incarnation = kIncarnation, .newest = 1}, 900);
  pass(999);
  EXPECT_THAT(actions<action::OpenChannel>(), IsEmpty());
  pass(1000);
  EXPECT_THAT(actions<action::OpenChannel>(), SizeIs(1));
}

TEST_F(SubscriberChannels, BytesThatAreNotProvedAreFetchedOnceMoreByAnotherChannelThenRefused) {
  greet({kUcx, kZmq});
  channel_opens();
  grant(1);
  installed(1, fail(Code::corrupt, "tensor 0 is not what the manifest says"));
  EXPECT_THAT(actions<action::CloseChannel>(), SizeIs(1));
  ASSERT_THAT(actions<action::OpenChannel>(), SizeIs(1));
  EXPECT_EQ(actions<action::OpenChannel>()[0].offer, kZmq);
  channel_opens();
  grant(1);
  installed(1, fail(Code::corrupt, "tensor 0 is not what the manifest says"));
  EXPECT_THAT(sent<Want>(), IsEmpty()) << "it is the version";
  receive(Pong{.session = session_, .incarnation = kIncarnation, .newest = 1}, 900);
  pass(1100);
  EXPECT_THAT(sent<Want>(), IsEmpty());
}

TEST_F(SubscriberChannels, ThreeFailedInstallsInARowAreTheChannelsFault) {
  greet({kUcx, kZmq});
  channel_opens();
  std::int64_t ms = 0;
  for (int i = 0; i < 3; ++i) {
    if (i > 0) {
      while (sent<Want>().empty()) tick(ms += 50);
    }
    grant(1, ms);
    installed(1, fail(Code::unavailable, "no lease"), ms);
    EXPECT_EQ(actions<action::OpenChannel>().size(), i == 2 ? 1u : 0u);
  }
  EXPECT_EQ(actions<action::OpenChannel>().at(0).offer, kZmq);
}

TEST_F(SubscriberChannels, ASilentPublisherOfAnotherHostIsClaimedAndThenGivenUp) {
  greet({kZmq});
  channel_opens();
  grant(1);
  pass(999);
  EXPECT_THAT(sent<Hello>(), IsEmpty());
  tick(1000);
  EXPECT_FALSE(machine_.session().connected());
  ASSERT_THAT(sent<Hello>(), SizeIs(1));
  EXPECT_EQ(sent<Hello>()[0].session, session_);
  EXPECT_EQ(sent<Hello>()[0].door_token, 77u);
  pass(2000);
  EXPECT_THAT(actions<action::CloseChannel>(), SizeIs(1));
  ASSERT_THAT(sent<Hello>(), Not(IsEmpty()));
  EXPECT_NE(sent<Hello>().back().session, session_);
  EXPECT_EQ(sent<Hello>().back().door_token, 0u);
}

TEST_F(SubscriberChannels, SomebodyElseWhoDoesNotKnowTheSessionIsGreetedAnewAtOnce) {
  greet({kZmq});
  channel_opens();
  tick(1000);
  receive(UnknownSession{.session = session_}, 1010);
  EXPECT_THAT(actions<action::CloseChannel>(), SizeIs(1));
  pass(1200);
  ASSERT_THAT(sent<Hello>(), Not(IsEmpty()));
  EXPECT_NE(sent<Hello>()[0].session, session_);
}

TEST_F(SubscriberChannels, BytesOnTheChannelAreASignOfLife) {
  greet({kZmq});
  channel_opens();
  grant(1);
  for (std::int64_t ms = 500; ms < 5000; ms += 500) {
    when([&] { machine_.on_channel_progress(session_, at(ms)); });
    pass(ms);
    EXPECT_THAT(sent<Hello>(), IsEmpty());
  }
  EXPECT_TRUE(machine_.session().connected());
  EXPECT_EQ(machine_.session().last_heard(), at(4500));
}

TEST_F(SubscriberChannels, AnotherPublisherIsNotAvoidedForWhatTheFirstDid) {
  greet({kZmq});
  channel_dies(0);
  receive(UnknownSession{.session = session_}, 10);  // Claimed,
  receive(UnknownSession{.session = session_}, 20);  // in vain.
  pass(300);
  ASSERT_THAT(sent<Hello>(), Not(IsEmpty()));
  session_ = sent<Hello>().back().session;
  welcome({kZmq}, "", 1, 310, kIncarnation + 1);
  EXPECT_THAT(actions<action::OpenChannel>(), SizeIs(1));
}

TEST_F(SubscriberChannels, ASessionThatTwoPublishersKnowIsGivenUp) {
  greet({kZmq});
  channel_opens();
  welcome({kZmq}, "", 9, 300, kIncarnation + 1);
  EXPECT_THAT(actions<action::CloseChannel>(), SizeIs(1));
  ASSERT_THAT(sent<Hello>(), SizeIs(1));
  EXPECT_NE(sent<Hello>()[0].session, session_);
  session_ = sent<Hello>()[0].session;
  welcome({kZmq}, "", 9, 310, kIncarnation + 1);
  channel_opens(310);
  receive(Pong{.session = session_, .incarnation = kIncarnation, .newest = 9}, 600);
  ASSERT_THAT(sent<Hello>(), SizeIs(1)) << "whoever answers this one is the one";
  EXPECT_EQ(sent<Hello>()[0].session, session_);
}

TEST_F(SubscriberChannels, APublisherThatOffersNothingOfUseIsLeftAndAskedAgainLater) {
  when([&] { machine_.on_start(at(0)); });
  session_ = sent<Hello>().at(0).session;
  welcome({{.kind = ChannelKind::file, .address = "/f"}});
  EXPECT_THAT(sent<Bye>(), SizeIs(1));
  EXPECT_THAT(machine_.session().last_refusal(), HasSubstr("file offered"));
  EXPECT_EQ(machine_.channel().refusal(), machine_.session().last_refusal());
  pass(999);
  EXPECT_THAT(sent<Hello>(), IsEmpty());
  pass(1000);
  EXPECT_THAT(sent<Hello>(), SizeIs(1));
}

TEST_F(SubscriberChannels, StoppingClosesTheChannel) {
  greet({kZmq});
  channel_opens();
  when([&] { machine_.on_stop(at(0)); });
  EXPECT_THAT(actions<action::CloseChannel>(), SizeIs(1));
  EXPECT_THAT(sent<Bye>(), SizeIs(1));
}

TEST_F(SubscriberChannels, AHigherNumberSeenByOthersIsToldAtOnce) {
  greet({kZmq});
  channel_opens();
  when([&] { machine_.on_higher_seen(40, at(0)); });
  ASSERT_THAT(sent<Hello>(), SizeIs(1));
  EXPECT_EQ(sent<Hello>()[0].highest_seen, 40u);
  when([&] { machine_.on_higher_seen(40, at(0)); });
  EXPECT_THAT(actions_, IsEmpty());
}

class EverySubscriberChannels : public SubscriberChannels {
 protected:
  EverySubscriberChannels() : SubscriberChannels(Mode::every) {}
};

TEST_F(EverySubscriberChannels, NoVersionIsLostWhenTheChannelDies) {
  greet({kUcx, kZmq}, "", 3);
  channel_opens();
  grant(1);
  installed(1, {});
  grant(2);
  channel_dies(10);
  installed(2, fail(Code::unavailable, "the channel died"), 10);
  channel_opens(500);
  ASSERT_THAT(sent<Want>(), SizeIs(1));
  EXPECT_EQ(sent<Want>()[0].after, 1u);
  grant(2, 500);
  installed(2, {}, 500);
  EXPECT_EQ(sent<Want>().at(0).after, 2u);
}

}  // namespace
}  // namespace freshet::protocol::test
