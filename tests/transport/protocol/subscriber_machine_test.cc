// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/transport/protocol/subscriber_fixture.h"

namespace freshet::protocol::test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

TEST_F(SubscriberMachineTest, GreetsUntilSomebodyIsThere) {
  when([&] { machine_.on_start(at(0)); });
  const SessionId session = sent<Hello>().at(0).session;
  EXPECT_EQ(machine_.next_tick(), at(200));
  tick(199);
  EXPECT_THAT(actions_, IsEmpty());
  tick(200);
  EXPECT_EQ(sent<Hello>().at(0).session, session);
  EXPECT_FALSE(machine_.session().connected());
}

TEST_F(SubscriberMachineTest, TakesTheNewestAndThenWaitsForNews) {
  connect(3);
  serve(3);
  EXPECT_EQ(machine_.position().serving(), 3u);
  EXPECT_THAT(sent<Want>(), IsEmpty());
  announce(4);
  EXPECT_EQ(sent<Want>().at(0).after, 3u);
  announce(5);
  EXPECT_THAT(sent<Want>(), IsEmpty()) << "one Want at a time";
  announce(4);
  announce(3);
  EXPECT_THAT(actions_, IsEmpty());
}

TEST_F(SubscriberMachineTest, NewsThatOvertookARefusalIsAReasonToAskAgain) {
  connect(0);
  announce(4);
  const Want early = sent<Want>().at(0);
  announce(4);  // It has come now; the refusal was sent before.
  EXPECT_THAT(sent<Want>(), IsEmpty());
  const Refusal refusal{
      .session = session_, .request = early.request, .code = Code::not_found, .current = {.version = 4}};
  receive(refusal);
  ASSERT_THAT(sent<Want>(), SizeIs(1));
  Refusal again = refusal;
  again.request = sent<Want>()[0].request;
  receive(again, 1);
  EXPECT_THAT(sent<Want>(), IsEmpty()) << "nothing was heard since";
  announce(4, kIncarnation, 2);
  EXPECT_THAT(sent<Want>(), SizeIs(1));
}

TEST_F(SubscriberMachineTest, AProgramThatAppliesVersionsItselfIsBehindUntilItHas) {
  machine_.followers().applied(0);
  connect(3);
  serve(3);
  const auto behind_at = [this](std::int64_t ms) {
    tick(ms);
    EXPECT_THAT(sent<Ping>(), SizeIs(1));
    return sent<Ping>().empty() ? 0 : sent<Ping>()[0].behind;
  };
  EXPECT_EQ(behind_at(250), 1u);
  machine_.followers().applied(3);
  EXPECT_EQ(behind_at(500), 0u);
  machine_.followers().applied(2);
  EXPECT_EQ(behind_at(750), 1u) << "another one than what is served";
}

class SilentPublisher : public SubscriberMachineTest {};

TEST_F(SilentPublisher, IsLeftForSomebodyElseAndItsDoorKeptWhileItIsRead) {
  machine_.set_elsewhere(true);
  connect(3);
  serve(3);
  tick(999);
  EXPECT_THAT(sent<Hello>(), IsEmpty());
  const SessionId before = session_;
  tick(1000);
  ASSERT_THAT(sent<Hello>(), SizeIs(1));
  EXPECT_NE(sent<Hello>()[0].session, before);
  EXPECT_THAT(actions<action::LeaveDoor>(), IsEmpty());
  EXPECT_EQ(machine_.position().serving(), 3u);
  connect(4, 1001, kIncarnation + 1);
  serve(4, 1002);
  when([&] { machine_.on_unpinned(before, 3, at(1003)); });
  ASSERT_THAT(actions<action::LeaveDoor>(), SizeIs(1));
  EXPECT_EQ(actions<action::LeaveDoor>()[0].session, before);
}

TEST_F(SilentPublisher, IsWaitedForWhereNobodyElseIsKnown) {
  connect(3);
  serve(3);
  tick(1000);
  EXPECT_FALSE(machine_.session().connected());
  EXPECT_THAT(sent<Hello>(), IsEmpty());
  EXPECT_THAT(actions<action::LeaveDoor>(), IsEmpty());
}

TEST_F(SubscriberMachineTest, APongMakesUpForLostNews) {
  connect(0);
  EXPECT_THAT(sent<Want>(), IsEmpty());
  tick(250);
  ASSERT_THAT(sent<Ping>(), SizeIs(1));
  receive(Pong{.session = session_, .incarnation = kIncarnation, .newest = 9}, 251);
  EXPECT_THAT(sent<Want>(), SizeIs(1));
}

TEST_F(SubscriberMachineTest, ALostAnswerIsAskedForAgainUnderTheSameRequest) {
  connect(3);
  const Want first = sent<Want>().at(0);
  tick(200);
  ASSERT_THAT(sent<Want>(), SizeIs(1));
  EXPECT_EQ(sent<Want>()[0].request, first.request);
  tick(599);
  EXPECT_THAT(sent<Want>(), IsEmpty()) << "the pause grows";
  tick(600);
  EXPECT_THAT(sent<Want>(), SizeIs(1));
}

TEST_F(SubscriberMachineTest, AnAnswerThatCameTwiceIsGivenBack) {
  connect(3);
  const Want want = sent<Want>().at(0);
  const Grant first = grant_for(want, 3);
  const Grant second = grant_for(want, 4);
  receive(second);
  EXPECT_THAT(actions<action::Install>(), SizeIs(1));
  receive(second);
  EXPECT_THAT(actions_, IsEmpty());
  receive(first);
  EXPECT_THAT(actions_, IsEmpty()) << "overtaken: the next Held covers it";
  receive(grant_for(want, 5));
  EXPECT_THAT(actions<action::Install>(), IsEmpty());
  ASSERT_THAT(sent<Held>(), SizeIs(1));
  EXPECT_EQ(sent<Held>()[0].grants_seen, 3u);
  EXPECT_THAT(sent<Held>()[0].numbers, ElementsAre(4)) << "what is being installed is held already";
}

TEST_F(SubscriberMachineTest, SaysWhatItHoldsWhenAVersionIsUnread) {
  connect(3);
  serve(3);
  announce(4);
  serve(4);
  when([&] { machine_.on_unpinned(session_, 3, at(0)); });
  ASSERT_THAT(sent<Held>(), SizeIs(1));
  EXPECT_EQ(sent<Held>()[0].grants_seen, 2u);
  EXPECT_THAT(sent<Held>()[0].numbers, ElementsAre(4));
  tick(250);
  EXPECT_THAT(sent<Held>(), SizeIs(1)) << "repeated, as it may be lost";
}

TEST_F(SubscriberMachineTest, AVersionThatIsWrongIsNotAskedForAgain) {
  connect(3);
  receive(grant_for(sent<Want>().at(0), 3));
  installed(3, fail(Code::corrupt, "hostile"));
  EXPECT_THAT(sent<Want>(), IsEmpty());
  EXPECT_THAT(sent<Held>().at(0).numbers, IsEmpty());
  for (int ms = 250; ms < 5000; ms += 250) {
    tick(ms);
    EXPECT_THAT(sent<Want>(), IsEmpty());
    receive(Pong{.session = session_, .incarnation = kIncarnation, .newest = 3}, ms);
    EXPECT_THAT(sent<Want>(), IsEmpty());
  }
  announce(4, kIncarnation, 5000);
  EXPECT_EQ(sent<Want>().at(0).after, 3u);
  EXPECT_EQ(machine_.position().serving(), 0u);
}

TEST_F(SubscriberMachineTest, AVersionThatCouldNotBeHadIsAskedForAfterAPause) {
  connect(3);
  receive(grant_for(sent<Want>().at(0), 3));
  installed(3, fail(Code::unavailable, "a slab did not come"));
  EXPECT_THAT(sent<Want>(), IsEmpty());
  tick(200);
  ASSERT_THAT(sent<Want>(), SizeIs(1));
  receive(grant_for(sent<Want>()[0], 3), 200);
  installed(3, fail(Code::unavailable, "nor now"), 200);
  tick(599);
  EXPECT_THAT(sent<Want>(), IsEmpty());
  tick(600);
  serve(3, 600);
  EXPECT_EQ(machine_.position().serving(), 3u);
}

TEST_F(SubscriberMachineTest, AClosedDoorLeadsToANewSessionAndWhatWasServedStays) {
  connect(3);
  serve(3);
  const SessionId before = session_;
  when([&] { machine_.on_door_closed(before, at(1000)); });
  EXPECT_FALSE(machine_.session().connected());
  EXPECT_EQ(machine_.position().serving(), 3u);
  ASSERT_THAT(sent<Hello>(), SizeIs(1));
  EXPECT_NE(sent<Hello>()[0].session, before);
  EXPECT_EQ(sent<Hello>()[0].highest_seen, 3u);
  EXPECT_THAT(actions<action::LeaveDoor>(), IsEmpty());
  grants_ = 0;
  connect(4, 1000, kIncarnation + 1);
  EXPECT_EQ(sent<Want>().at(0).after, 3u);
  serve(4, 1000);
  EXPECT_EQ(machine_.position().serving(), 4u);
}

TEST_F(SubscriberMachineTest, ARestartedPublisherThatIsBehindIsWaitedFor) {
  connect(30);
  serve(30);
  when([&] { machine_.on_door_closed(session_, at(1000)); });
  connect(2, 1000, kIncarnation + 1);
  EXPECT_EQ(machine_.news().newest(), 2u);
  EXPECT_THAT(sent<Want>(), IsEmpty());
  announce(31, kIncarnation, 1001);
  EXPECT_THAT(sent<Want>(), IsEmpty()) << "news of the life before";
  announce(31, kIncarnation + 1, 1001);
  EXPECT_THAT(sent<Want>(), SizeIs(1));
}

TEST_F(SubscriberMachineTest, ASilentPublisherKeepsItsSession) {
  connect(3);
  serve(3);
  EXPECT_TRUE(machine_.session().connected());
  for (int ms = 250; ms <= 5000; ms += 250) {
    tick(ms);
    EXPECT_THAT(sent<Hello>(), IsEmpty());
  }
  EXPECT_FALSE(machine_.session().connected());
  EXPECT_EQ(machine_.position().serving(), 3u);
  receive(Pong{.session = session_, .incarnation = kIncarnation, .newest = 3}, 5001);
  EXPECT_TRUE(machine_.session().connected());
}

TEST_F(SubscriberMachineTest, ASessionThatTheConnectionLostIsClaimed) {
  connect(3);
  serve(3);
  receive(UnknownSession{.session = session_}, 1000);
  ASSERT_THAT(sent<Hello>(), SizeIs(1));
  EXPECT_EQ(sent<Hello>()[0].session, session_);
  EXPECT_EQ(sent<Hello>()[0].door_token, 77u);
  receive(UnknownSession{.session = session_}, 1001);
  EXPECT_THAT(actions_, IsEmpty()) << "the answer to a Ping that was under way";
  receive(Welcome{.session = session_, .incarnation = kIncarnation}, 1002);
  EXPECT_THAT(actions<action::OpenDoor>(), IsEmpty());
  tick(9000);
  EXPECT_THAT(sent<Hello>(), IsEmpty());
}

TEST_F(SubscriberMachineTest, AnUnheardClaimEndsInANewSessionButTheDoorStaysWhileItIsReadThrough) {
  connect(3);
  serve(3);
  const SessionId before = session_;
  receive(UnknownSession{.session = before}, 1000);
  tick(2000);
  EXPECT_THAT(actions<action::LeaveDoor>(), IsEmpty()) << "version 3 is served through it";
  ASSERT_THAT(sent<Hello>(), SizeIs(1));
  EXPECT_NE(sent<Hello>()[0].session, before);
  EXPECT_EQ(sent<Hello>()[0].door_token, 0u);
  grants_ = 0;
  connect(4, 2000);
  serve(4, 2000);
  when([&] { machine_.on_unpinned(before, 3, at(2000)); });
  ASSERT_THAT(actions<action::LeaveDoor>(), SizeIs(1));
  EXPECT_EQ(actions<action::LeaveDoor>()[0].session, before);
}

/// Found by the simulator (seed 179523779301100): what a drained session let go of stayed held, since nobody listened
/// to its Held from another connection.
TEST_F(SubscriberMachineTest, ADrainedSessionIsClaimedOncePerHeartbeat) {
  connect(3);
  serve(3);
  const SessionId before = session_;
  receive(UnknownSession{.session = before}, 1000);
  tick(2000);
  grants_ = 0;
  connect(3, 2000);
  receive(UnknownSession{.session = before}, 2001);
  ASSERT_THAT(sent<Hello>(), SizeIs(1));
  EXPECT_EQ(sent<Hello>()[0].session, before);
  EXPECT_EQ(sent<Hello>()[0].door_token, 77u);
  receive(UnknownSession{.session = before}, 2002);
  EXPECT_THAT(actions_, IsEmpty()) << "a publisher that never heard of it is not asked in a circle";
  receive(Welcome{.session = before, .incarnation = kIncarnation}, 2003);
  EXPECT_THAT(actions_, IsEmpty());
  tick(2250);
  EXPECT_THAT(sent<Held>(), Not(IsEmpty()));
  receive(UnknownSession{.session = before}, 2251);
  EXPECT_THAT(sent<Hello>(), SizeIs(1));
}

TEST_F(SubscriberMachineTest, ADoorThatDoesNotOpenIsGivenUp) {
  when([&] { machine_.on_start(at(0)); });
  const SessionId session = sent<Hello>().at(0).session;
  receive(Welcome{.session = session, .incarnation = kIncarnation, .door_token = 1});
  tick(1999);
  EXPECT_THAT(actions_, IsEmpty());
  tick(2000);
  EXPECT_EQ(actions<action::LeaveDoor>().at(0).session, session);
  EXPECT_NE(sent<Hello>().at(0).session, session);
  when([&] { machine_.on_door_open(session, at(2001)); });
  EXPECT_EQ(actions<action::LeaveDoor>().at(0).session, session) << "too late";
}

TEST_F(SubscriberMachineTest, ARefusedHelloIsRepeatedAfterALongerPause) {
  when([&] { machine_.on_start(at(0)); });
  receive(Refusal{.session = sent<Hello>().at(0).session, .code = Code::unsupported, .message = "another host"});
  EXPECT_EQ(machine_.session().last_refusal(), "another host");
  tick(999);
  EXPECT_THAT(sent<Hello>(), IsEmpty());
  tick(1000);
  EXPECT_THAT(sent<Hello>(), SizeIs(1));
}

TEST_F(SubscriberMachineTest, NewsOfAVersionThatIsNotThereEndsWithTheRefusal) {
  connect(3);
  serve(3);
  announce(kNumberMax);
  const Want want = sent<Want>().at(0);
  receive(Refusal{.session = session_, .request = want.request, .code = Code::not_found, .newest = 3}, 1);
  EXPECT_THAT(sent<Want>(), IsEmpty());
  tick(250);
  EXPECT_THAT(sent<Want>(), IsEmpty());
  announce(4, kIncarnation, 251);
  EXPECT_THAT(sent<Want>(), SizeIs(1)) << "the true news after it are heard";
}

TEST_F(SubscriberMachineTest, ARefusalThatPassesIsAskedAgainAndOneThatDoesNotWaitsForNews) {
  connect(3);
  receive(Refusal{.session = session_, .request = 1, .code = Code::out_of_space, .newest = 3});
  EXPECT_THAT(sent<Want>(), IsEmpty());
  EXPECT_EQ(machine_.next_tick(), at(200));
  tick(200);
  ASSERT_THAT(sent<Want>(), SizeIs(1));
  EXPECT_EQ(sent<Want>()[0].request, 2u);
  receive(Refusal{.session = session_, .request = 2, .code = Code::unsupported, .newest = 3}, 200);
  tick(5000);
  EXPECT_THAT(sent<Want>(), IsEmpty());
  announce(4, kIncarnation, 5000);
  EXPECT_THAT(sent<Want>(), SizeIs(1));
}

TEST_F(SubscriberMachineTest, MessagesOfOtherSessionsAndUnaskedGrantsChangeNothing) {
  connect(3);
  const Want want = sent<Want>().at(0);
  receive(Grant{.session = session_ + 1, .request = want.request, .grant = 1, .number = 3});
  receive(UnknownSession{.session = session_ + 1});
  receive(Pong{.session = session_, .incarnation = 99, .newest = 50});
  receive(Refusal{.session = session_, .request = want.request + 1, .code = Code::unsupported});
  receive(Hello{.session = session_});
  EXPECT_THAT(actions_, IsEmpty());
  EXPECT_EQ(machine_.news().newest(), 3u);
  receive(Grant{.session = session_, .request = want.request + 7, .grant = 1, .number = 3});
  EXPECT_THAT(actions<action::Install>(), IsEmpty());
  EXPECT_THAT(sent<Held>().at(0).numbers, IsEmpty());
}

TEST_F(SubscriberMachineTest, AnOlderVersionIsNeverInstalledNorAskedForInACircle) {
  connect(3);
  serve(3);
  announce(5);
  const Want want = sent<Want>().at(0);
  receive(grant_for(want, 2));
  EXPECT_THAT(actions<action::Install>(), IsEmpty());
  EXPECT_THAT(sent<Want>(), IsEmpty());
  tick(200);
  EXPECT_THAT(sent<Want>(), SizeIs(1));
}

TEST_F(SubscriberMachineTest, NamesTheArchitecturesThatItKnows) {
  machine_.on_architecture_known(two_tensors()->digest());
  connect(3);
  EXPECT_THAT(sent<Want>().at(0).known_architectures, ElementsAre(two_tensors()->digest()));
}

TEST_F(SubscriberMachineTest, SaysWithItsGoodbyeThatSomethingIsReadOn) {
  connect(3);
  serve(3);
  announce(4);
  ASSERT_THAT(sent<Want>(), SizeIs(1));
  receive(grant_for(sent<Want>()[0], 4));
  when([&] { machine_.on_stop(at(1)); });
  EXPECT_THAT(actions<action::Abandon>(), SizeIs(1)) << "what is on its way is not read";
  ASSERT_THAT(sent<Held>(), SizeIs(1));
  EXPECT_THAT(sent<Held>()[0].numbers, ElementsAre(3));
  ASSERT_THAT(sent<Bye>(), SizeIs(1));
  EXPECT_TRUE(sent<Bye>()[0].reads_on);
}

TEST_F(SubscriberMachineTest, SaysGoodbye) {
  connect(3);
  serve(3);
  when([&] { machine_.on_unpinned(session_, 3, at(1)); });
  when([&] { machine_.on_stop(at(1)); });
  ASSERT_THAT(sent<Bye>(), SizeIs(1));
  EXPECT_FALSE(sent<Bye>()[0].reads_on);
  EXPECT_THAT(actions<action::LeaveDoor>(), SizeIs(1));
  EXPECT_EQ(machine_.next_tick(), Time::max());
  announce(9);
  tick(9000);
  EXPECT_THAT(actions_, IsEmpty());
}

}  // namespace
}  // namespace freshet::protocol::test
