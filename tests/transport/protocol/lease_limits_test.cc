// SPDX-License-Identifier: Apache-2.0
/// How much of what a publisher's sessions share one session, or one key, can have by its leases.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string_view>

#include "tests/transport/protocol/leases_fixture.h"

namespace freshet::protocol::test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

class LeaseLimits : public PublisherLeases {};

TEST_F(LeaseLimits, TooManyVersionsOfAKeyAreRefusedAndOfOthersAreNot) {
  PublisherMachine::Options few = options();
  few.leased_versions_per_key_max = 2;
  machine_ = std::make_unique<PublisherMachine>(few);
  const auto wants = [&](SessionId session, const Peer& peer, std::string_view key) {
    when([&] {
      machine_->on_message(
          peer, {Hello{.session = session, .model = kModel, .host = "elsewhere", .channels = bit(ChannelKind::zmq)}},
          at(0), key);
    });
    receive(Want{.session = session, .request = 1, .channel = ChannelKind::zmq}, 0, peer);
    return !sent<Grant>().empty();
  };
  commit(1);
  EXPECT_TRUE(wants(1, "first", "key"));
  commit(2);
  EXPECT_TRUE(wants(2, "second", "key"));
  EXPECT_TRUE(wants(3, "third", "key")) << "of a version that the key has a lease on already";
  commit(3);
  EXPECT_FALSE(wants(4, "fourth", "key"));
  EXPECT_THAT(sent<Refusal>().at(0).message, HasSubstr("leases on 2 versions"));
  EXPECT_TRUE(wants(5, "fifth", "another key"));
  EXPECT_TRUE(wants(6, "sixth", ""));
}

TEST_F(LeaseLimits, ALeaseByWhichNothingComesEndsWhenRoomIsNeeded) {
  commit(1);
  join(1);
  const LeaseId lease = want(1, 1, 0)->lease;
  commit(2);
  const auto shed = [&](std::int64_t ms) {
    receive(Ping{.session = 1}, ms);
    when([&] { machine_->shed_queues(1, at(ms)); });
    return actions<action::CloseLease>();
  };
  EXPECT_THAT(shed(2900), IsEmpty()) << "it may be about to begin";
  const auto closed = shed(3000);
  ASSERT_THAT(closed, SizeIs(1));
  EXPECT_EQ(closed[0].lease, lease);
  EXPECT_TRUE(closed[0].by_force);
  lease_closed(lease);
  EXPECT_THAT(freed(), UnorderedElementsAre(2, 3));
  EXPECT_EQ(want(1, 2, 0, 3000)->number, 2u) << "its session goes on";
}

TEST_F(LeaseLimits, TheLeaseOnTheNewestVersionEndsNotForRoom) {
  commit(1);
  join(1);
  want(1, 1, 0);
  receive(Ping{.session = 1}, 30'000);
  when([&] { machine_->shed_queues(1, at(30'000)); });
  EXPECT_THAT(actions<action::CloseLease>(), IsEmpty());
}

TEST_F(LeaseLimits, WhoFetchesTooSlowlyGivesWayByWhatCameAndNotByHowOften) {
  PublisherMachine::Options slow = options();
  slow.fetch_rate_min = 10;  // The versions have 128 bytes.
  machine_ = std::make_unique<PublisherMachine>(slow);
  commit(1);
  join(1);
  const LeaseId lease = want(1, 1, 0)->lease;
  commit(2);
  const auto is_closed = [&](std::int64_t ms) {
    receive(Ping{.session = 1}, ms);
    when([&] { machine_->shed_queues(1, at(ms)); });
    return !actions<action::CloseLease>().empty();
  };
  machine_->on_fetched(lease, 1, at(1000));
  EXPECT_FALSE(is_closed(10'000)) << "it has begun, and has its grace";
  machine_->on_fetched(lease, 99, at(10'500));
  EXPECT_FALSE(is_closed(20'000)) << "100 bytes in 10 s after the grace";
  machine_->on_fetched(lease, 1'000'000, at(20'500));
  EXPECT_FALSE(is_closed(35'000));
  EXPECT_TRUE(is_closed(36'000)) << "twice the version's bytes count, however often they were fetched";
}

TEST_F(LeaseLimits, ALeaseUnderWhichNothingIsFetchedEnds) {
  commit(1);
  join(1);
  const LeaseId lease = want(1, 1, 0)->lease;
  machine_->on_fetched(lease, 1, at(10'000));
  for (std::int64_t ms = 0; ms < 70'000; ms += 500) {
    receive(Ping{.session = 1}, ms);
    tick(ms);
    EXPECT_THAT(actions<action::CloseLease>(), IsEmpty()) << ms;
  }
  receive(Ping{.session = 1}, 70'000);
  tick(70'000);
  const auto closed = actions<action::CloseLease>();
  ASSERT_THAT(closed, SizeIs(1));
  EXPECT_EQ(closed[0].lease, lease);
  EXPECT_FALSE(closed[0].by_force) << "what is being sent is sent";
}

}  // namespace
}  // namespace freshet::protocol::test
