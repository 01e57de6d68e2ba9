#include "transport/protocol/subscriber_machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/transport/machine_fixture.h"

namespace freshet::protocol::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr std::uint64_t kIncarnation = 5;

class SubscriberMachineTest : public ::testing::Test {
 protected:
  explicit SubscriberMachineTest(SubscriberMachine::Options options = {.model = kModel, .session_seed = 1})
      : machine_(std::move(options)) {}

  template <typename M>
  std::vector<M> sent() {
    return messages<M, action::SendControl>(actions_);
  }
  template <typename A>
  std::vector<A> actions() {
    return actions_of<A>(actions_);
  }
  template <typename Event>
  void when(Event event) {
    event();
    actions_ = machine_.take_actions();
  }
  void receive(Message message, std::int64_t ms = 0) {
    when([&] { machine_.on_message(with_newest_current(std::move(message)), at(ms)); });
  }
  void announce(VersionNumber number, std::uint64_t incarnation = kIncarnation, std::int64_t ms = 0) {
    when([&] {
      machine_.on_announcement(
          {.model = kModel, .incarnation = incarnation, .number = number, .current = {.number = number}}, at(ms));
    });
  }
  void tick(std::int64_t ms) {
    when([&] { machine_.on_tick(at(ms)); });
  }
  /// Up to `following`; whoever is there has version `newest`.
  void connect(VersionNumber newest, std::int64_t ms = 0, std::uint64_t incarnation = kIncarnation) {
    if (session_ == 0) when([&] { machine_.on_start(at(ms)); });
    ASSERT_THAT(sent<Hello>(), SizeIs(1));
    session_ = sent<Hello>()[0].session;
    receive(Welcome{.session = session_,
                    .incarnation = incarnation,
                    .door_token = 77,
                    .newest = newest,
                    .keeps_wants = keeps_wants_},
            ms);
    ASSERT_THAT(actions<action::OpenDoor>(), SizeIs(1));
    EXPECT_EQ(actions<action::OpenDoor>()[0].token, 77u);
    when([&] { machine_.on_door_open(session_, at(ms)); });
  }
  Grant grant_for(const Want& want, VersionNumber number) {
    return {.session = want.session, .request = want.request, .grant = ++grants_, .number = number};
  }
  /// Answers the Want of the moment with a version, and lets it be installed.
  void serve(VersionNumber number, std::int64_t ms = 0) {
    ASSERT_THAT(sent<Want>(), SizeIs(1));
    receive(grant_for(sent<Want>()[0], number), ms);
    ASSERT_THAT(actions<action::Install>(), SizeIs(1));
    installed(number, {}, ms);
  }
  void installed(VersionNumber number, Status status, std::int64_t ms = 0) {
    when([&] { machine_.on_installed(session_, number, status, at(ms)); });
  }

  SubscriberMachine machine_;
  std::vector<SubscriberAction> actions_;
  bool keeps_wants_ = false;
  SessionId session_ = 0;
  std::uint64_t grants_ = 0;
};

TEST_F(SubscriberMachineTest, GreetsUntilSomebodyIsThere) {
  when([&] { machine_.on_start(at(0)); });
  const SessionId session = sent<Hello>().at(0).session;
  EXPECT_EQ(machine_.next_tick(), at(200));
  tick(199);
  EXPECT_THAT(actions_, IsEmpty());
  tick(200);
  EXPECT_EQ(sent<Hello>().at(0).session, session);
  EXPECT_FALSE(machine_.connected());
}

TEST_F(SubscriberMachineTest, TakesTheNewestAndThenWaitsForNews) {
  connect(3);
  serve(3);
  EXPECT_EQ(machine_.serving(), 3u);
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
      .session = session_, .request = early.request, .code = Code::not_found, .current = {.number = 4}};
  receive(refusal);
  ASSERT_THAT(sent<Want>(), SizeIs(1));
  Refusal again = refusal;
  again.request = sent<Want>()[0].request;
  receive(again, 1);
  EXPECT_THAT(sent<Want>(), IsEmpty()) << "nothing was heard since";
  announce(4, kIncarnation, 2);
  EXPECT_THAT(sent<Want>(), SizeIs(1));
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
  EXPECT_EQ(machine_.serving(), 3u);
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
  EXPECT_FALSE(machine_.connected());
  EXPECT_THAT(sent<Hello>(), IsEmpty());
  EXPECT_THAT(actions<action::LeaveDoor>(), IsEmpty());
}

class WaitingSubscriber : public SubscriberMachineTest {
 protected:
  WaitingSubscriber() { keeps_wants_ = true; }
  /// Serves version 3, and has left a Want for what comes after it.
  Want wait_at_three() {
    connect(3);
    serve(3);
    const auto wants = sent<Want>();
    EXPECT_THAT(wants, SizeIs(1));
    return wants.empty() ? Want{} : wants[0];
  }
};

TEST_F(WaitingSubscriber, HasTheNextVersionBeforeTheNewsOfIt) {
  const Want want = wait_at_three();
  EXPECT_TRUE(want.waits);
  EXPECT_EQ(want.after, 3u);
  receive(grant_for(want, 4));
  ASSERT_THAT(actions<action::Install>(), SizeIs(1));
  announce(4);
  EXPECT_THAT(sent<Want>(), IsEmpty());
  installed(4, {});
  ASSERT_THAT(sent<Want>(), SizeIs(1));
  EXPECT_TRUE(sent<Want>()[0].waits);
  EXPECT_EQ(sent<Want>()[0].after, 4u);
  EXPECT_GT(sent<Want>()[0].request, want.request);
}

TEST_F(WaitingSubscriber, WaitsFromTheBeginningWhereNothingIsPublishedYet) {
  connect(0);
  ASSERT_THAT(sent<Want>(), SizeIs(1));
  EXPECT_TRUE(sent<Want>()[0].waits);
}

TEST_F(WaitingSubscriber, NewsThatComeFirstAreNoReasonToAskAtOnce) {
  const Want want = wait_at_three();
  announce(4, kIncarnation, 10);
  EXPECT_THAT(sent<Want>(), IsEmpty());
  EXPECT_EQ(machine_.next_tick(), at(60));
  tick(60);
  ASSERT_THAT(sent<Want>(), SizeIs(1)) << "the grant is lost";
  EXPECT_EQ(sent<Want>()[0].request, want.request);
  EXPECT_FALSE(sent<Want>()[0].waits) << "an answer is needed";
  receive(grant_for(want, 4), 70);
  EXPECT_THAT(actions<action::Install>(), SizeIs(1));
}

TEST_F(WaitingSubscriber, APongThatComesInPlaceOfTheGrantIsReasonToAskAnew) {
  const Want want = wait_at_three();
  receive(Pong{.session = session_, .incarnation = kIncarnation, .newest = 9}, 10);
  ASSERT_THAT(sent<Want>(), SizeIs(1));
  EXPECT_GT(sent<Want>()[0].request, want.request);
  EXPECT_FALSE(sent<Want>()[0].waits);
  // The grant of the one that waited was on its way after all.
  receive(grant_for(want, 9), 11);
  EXPECT_THAT(actions<action::Install>(), IsEmpty());
  EXPECT_THAT(sent<Held>().at(0).numbers, ElementsAre(3u));
}

TEST_F(WaitingSubscriber, ARefusalEndsTheWaitingUntilTheNextVersion) {
  const Want want = wait_at_three();
  receive(Refusal{.session = session_, .request = want.request, .code = Code::not_found, .newest = 3}, 10);
  EXPECT_THAT(sent<Want>(), IsEmpty());
  tick(250);
  EXPECT_THAT(sent<Want>(), IsEmpty());
  announce(4, kIncarnation, 260);
  serve(4, 261);
  EXPECT_THAT(sent<Want>(), SizeIs(1));
}

TEST_F(WaitingSubscriber, ANewEpochOfWhatItServesReplacesTheWantThatWaits) {
  const Want want = wait_at_three();
  when([&] {
    machine_.on_announcement(
        {.model = kModel, .incarnation = kIncarnation, .number = 3, .current = {.epoch = 2, .number = 3, .hold = true}},
        at(10));
  });
  EXPECT_EQ(machine_.serving_epoch(), 2u);
  ASSERT_THAT(sent<Want>(), SizeIs(1));
  EXPECT_EQ(sent<Want>()[0].after_epoch, 2u);
  EXPECT_GT(sent<Want>()[0].request, want.request);
}

TEST_F(WaitingSubscriber, ANewSessionWaitsAnew) {
  const Want want = wait_at_three();
  when([&] { machine_.on_door_closed(session_, at(300)); });
  connect(3, 300);
  ASSERT_THAT(sent<Want>(), SizeIs(1));
  EXPECT_NE(sent<Want>()[0].session, want.session);
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
  EXPECT_EQ(machine_.serving(), 0u);
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
  EXPECT_EQ(machine_.serving(), 3u);
}

TEST_F(SubscriberMachineTest, AClosedDoorLeadsToANewSessionAndWhatWasServedStays) {
  connect(3);
  serve(3);
  const SessionId before = session_;
  when([&] { machine_.on_door_closed(before, at(1000)); });
  EXPECT_FALSE(machine_.connected());
  EXPECT_EQ(machine_.serving(), 3u);
  ASSERT_THAT(sent<Hello>(), SizeIs(1));
  EXPECT_NE(sent<Hello>()[0].session, before);
  EXPECT_EQ(sent<Hello>()[0].highest_seen, 3u);
  EXPECT_THAT(actions<action::LeaveDoor>(), IsEmpty());
  grants_ = 0;
  connect(4, 1000, kIncarnation + 1);
  EXPECT_EQ(sent<Want>().at(0).after, 3u);
  serve(4, 1000);
  EXPECT_EQ(machine_.serving(), 4u);
}

TEST_F(SubscriberMachineTest, ARestartedPublisherThatIsBehindIsWaitedFor) {
  connect(30);
  serve(30);
  when([&] { machine_.on_door_closed(session_, at(1000)); });
  connect(2, 1000, kIncarnation + 1);
  EXPECT_EQ(machine_.newest_known(), 2u);
  EXPECT_THAT(sent<Want>(), IsEmpty());
  announce(31, kIncarnation, 1001);
  EXPECT_THAT(sent<Want>(), IsEmpty()) << "news of the life before";
  announce(31, kIncarnation + 1, 1001);
  EXPECT_THAT(sent<Want>(), SizeIs(1));
}

TEST_F(SubscriberMachineTest, ASilentPublisherKeepsItsSession) {
  connect(3);
  serve(3);
  EXPECT_TRUE(machine_.connected());
  for (int ms = 250; ms <= 5000; ms += 250) {
    tick(ms);
    EXPECT_THAT(sent<Hello>(), IsEmpty());
  }
  EXPECT_FALSE(machine_.connected());
  EXPECT_EQ(machine_.serving(), 3u);
  receive(Pong{.session = session_, .incarnation = kIncarnation, .newest = 3}, 5001);
  EXPECT_TRUE(machine_.connected());
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
  EXPECT_EQ(machine_.last_refusal(), "another host");
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
  EXPECT_EQ(machine_.newest_known(), 3u);
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

TEST_F(SubscriberMachineTest, SaysGoodbye) {
  connect(3);
  serve(3);
  when([&] { machine_.on_stop(at(1)); });
  EXPECT_THAT(sent<Bye>(), SizeIs(1));
  EXPECT_THAT(actions<action::LeaveDoor>(), SizeIs(1));
  EXPECT_EQ(machine_.next_tick(), Time::max());
  announce(9);
  tick(9000);
  EXPECT_THAT(actions_, IsEmpty());
}

class EveryVersion : public SubscriberMachineTest {
 protected:
  EveryVersion()
      : SubscriberMachineTest(
            {.model = kModel, .mode = Mode::every, .after = 7, .session_seed = 1, .installs_in_flight_max = 2}) {}
  void serve_with_gap(VersionNumber number, std::uint64_t gap) {
    Grant grant = grant_for(sent<Want>().at(0), number);
    grant.gap_before = gap;
    receive(grant);
    installed(number, {});
  }
};

TEST_F(EveryVersion, StopsAskingWhileTooMuchIsNotTaken) {
  connect(20);
  EXPECT_EQ(sent<Want>().at(0).after, 7u);
  serve_with_gap(8, 0);
  EXPECT_EQ(sent<Want>().at(0).after, 8u);
  serve_with_gap(12, 3);
  EXPECT_THAT(sent<Want>(), IsEmpty());
  EXPECT_EQ(machine_.gaps(), 3u);
  when([&] { machine_.on_taken(99, at(0)); });
  EXPECT_THAT(sent<Want>(), IsEmpty());
  when([&] { machine_.on_taken(8, at(0)); });
  EXPECT_EQ(sent<Want>().at(0).after, 12u);
}

TEST_F(EveryVersion, GoesOnWhereItWasWithTheNextPublisher) {
  connect(20);
  serve_with_gap(8, 0);
  when([&] { machine_.on_door_closed(session_, at(1000)); });
  EXPECT_EQ(sent<Hello>().at(0).after, 8u);
  EXPECT_EQ(sent<Hello>().at(0).highest_seen, 8u);
}

TEST_F(EveryVersion, ARefusedVersionIsAGap) {
  connect(20);
  receive(grant_for(sent<Want>().at(0), 8));
  installed(8, fail(Code::corrupt, "hostile"));
  EXPECT_EQ(machine_.gaps(), 1u);
  EXPECT_EQ(sent<Want>().at(0).after, 8u);
}

}  // namespace
}  // namespace freshet::protocol::testing
