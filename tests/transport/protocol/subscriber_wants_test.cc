// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/transport/protocol/subscriber_fixture.h"

// What a subscriber asks for: the next version before there is one, or every version.

namespace freshet::protocol::test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

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

TEST_F(WaitingSubscriber, GetsAKeptVersionByItsNumberBesideTheServedOne) {
  wait_at_three();
  when([&] { EXPECT_TRUE(machine_.bring(1, at(0))); });
  ASSERT_THAT(sent<Want>(), SizeIs(1));
  const Want want = sent<Want>()[0];
  EXPECT_EQ(want.exactly, 1u);
  EXPECT_FALSE(want.waits);
  receive(grant_for(want, 1));
  ASSERT_THAT(actions<action::Install>(), SizeIs(1));
  EXPECT_TRUE(actions<action::Install>()[0].stage);
  installed(1, {});
  ASSERT_TRUE(machine_.staging().ready());
  EXPECT_EQ(machine_.staging().ready()->number, 1u);
  EXPECT_EQ(machine_.position().serving(), 3u);
  ASSERT_THAT(sent<Want>(), SizeIs(1)) << "it waits for the next one again";
  EXPECT_TRUE(sent<Want>()[0].waits);
  EXPECT_EQ(sent<Want>()[0].after, 3u);
  when([&] { machine_.forget(1, at(0)); });
  ASSERT_THAT(actions<action::DropStaged>(), SizeIs(1));
  EXPECT_EQ(actions<action::DropStaged>()[0].number, 1u);
  EXPECT_FALSE(machine_.staging().ready());
  when([&] { machine_.on_unpinned(session_, 1, at(0)); });
  ASSERT_THAT(sent<Held>(), SizeIs(1));
  EXPECT_THAT(sent<Held>()[0].numbers, ElementsAre(3));
}

TEST_F(WaitingSubscriber, WhatIsCurrentComesBeforeAVersionByItsNumber) {
  wait_at_three();
  announce(4);
  when([&] { EXPECT_TRUE(machine_.bring(1, at(0))); });
  EXPECT_THAT(sent<Want>(), IsEmpty()) << "the grant of 4 is on its way";
  tick(60);
  ASSERT_THAT(sent<Want>(), SizeIs(1));
  EXPECT_EQ(sent<Want>()[0].exactly, 0u);
  receive(grant_for(sent<Want>()[0], 4), 60);
  installed(4, {}, 60);
  ASSERT_THAT(sent<Want>(), SizeIs(1));
  EXPECT_EQ(sent<Want>()[0].exactly, 1u);
  // The publisher does not keep it.
  receive(Refusal{.session = session_,
                  .request = sent<Want>()[0].request,
                  .code = Code::not_found,
                  .newest = 4,
                  .current = {.version = 4}},
          61);
  ASSERT_TRUE(machine_.staging().failed());
  EXPECT_EQ(machine_.staging().failed()->code(), Code::not_found);
  when([&] { machine_.forget(1, at(62)); });
  EXPECT_EQ(machine_.staging().target(), 0u);
}

TEST_F(WaitingSubscriber, ForgetsAVersionThatIsOnItsWay) {
  wait_at_three();
  when([&] { EXPECT_TRUE(machine_.bring(1, at(0))); });
  receive(grant_for(sent<Want>().at(0), 1));
  when([&] { machine_.forget(1, at(0)); });
  EXPECT_THAT(actions<action::Abandon>(), SizeIs(1));
  ASSERT_THAT(sent<Held>(), SizeIs(1));
  EXPECT_THAT(sent<Held>()[0].numbers, ElementsAre(3));
  EXPECT_EQ(machine_.bring(3, at(0)).error().code(), Code::failed_precondition) << "it is served";
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
    machine_.on_announcement({.model = kModel,
                              .incarnation = kIncarnation,
                              .number = 3,
                              .current = {.epoch = 2, .version = 3, .hold = true}},
                             at(10));
  });
  EXPECT_EQ(machine_.position().serving_epoch(), 2u);
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
  EXPECT_EQ(machine_.position().gaps(), 3u);
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

/// Up to the Welcome of a publisher whose versions begin at `first`.
class NumberedAnew : public EveryVersion {
 protected:
  void welcome(std::uint64_t incarnation, VersionNumber first, VersionNumber newest, std::int64_t ms) {
    ASSERT_THAT(sent<Hello>(), SizeIs(1));
    session_ = sent<Hello>()[0].session;
    receive(
        Welcome{
            .session = session_, .incarnation = incarnation, .door_token = 77, .newest = newest, .first_number = first},
        ms);
  }
};

TEST_F(NumberedAnew, APublisherThatForgotTheNumbersIsFollowedFromItsFirst) {
  connect(20);
  serve_with_gap(8, 0);
  EXPECT_EQ(machine_.position().numbers_since(), 0u);
  when([&] { machine_.on_door_closed(session_, at(1000)); });
  welcome(kIncarnation + 1, /*first=*/1, /*newest=*/2, 1000);
  EXPECT_EQ(machine_.position().numbers_since(), kIncarnation + 1);
  ASSERT_THAT(sent<Hello>(), SizeIs(1)) << "greeted anew";
  EXPECT_EQ(sent<Hello>()[0].after, 0u);
  EXPECT_TRUE(sent<Hello>()[0].owed_all) << "what is missed is a gap";
  welcome(kIncarnation + 1, 1, 2, 1000);
  ASSERT_THAT(actions<action::OpenDoor>(), SizeIs(1)) << "once";
  when([&] { machine_.on_door_open(session_, at(1000)); });
  EXPECT_EQ(sent<Want>().at(0).after, 0u);
}

TEST_F(NumberedAnew, APublisherThatRemembersThemIsNot) {
  connect(20);
  serve_with_gap(8, 0);
  when([&] { machine_.on_door_closed(session_, at(1000)); });
  welcome(kIncarnation + 1, /*first=*/21, /*newest=*/22, 1000);
  ASSERT_THAT(actions<action::OpenDoor>(), SizeIs(1));
  when([&] { machine_.on_door_open(session_, at(1000)); });
  EXPECT_EQ(sent<Want>().at(0).after, 8u);
}

TEST_F(EveryVersion, ARefusedVersionIsAGap) {
  connect(20);
  receive(grant_for(sent<Want>().at(0), 8));
  installed(8, fail(Code::corrupt, "hostile"));
  EXPECT_EQ(machine_.position().gaps(), 1u);
  EXPECT_EQ(sent<Want>().at(0).after, 8u);
  // Whoever takes the versions finds it in the next one's gap.
  receive(grant_for(sent<Want>().at(0), 9));
  EXPECT_EQ(actions<action::Install>().at(0).grant.gap_before, 1u);
  installed(9, {});
  EXPECT_EQ(machine_.position().gaps(), 1u);
  receive(grant_for(sent<Want>().at(0), 10));
  EXPECT_EQ(actions<action::Install>().at(0).grant.gap_before, 0u);
}

}  // namespace
}  // namespace freshet::protocol::test
