// SPDX-License-Identifier: Apache-2.0
// Grants of versions that lie in device memory too: who gets the places, and what holds the segments there.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/transport/protocol/machine_fixture.h"
#include "transport/protocol/publisher/publisher_machine.h"
#include "transport/protocol/subscriber/subscriber_machine.h"

namespace freshet::protocol::test {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

class DeviceGrants : public ::testing::Test {
 protected:
  DeviceGrants()
      : machine_({.model = kModel,
                  .incarnation = 5,
                  .host = "here",
                  .channels = {{.kind = ChannelKind::zmq, .address = "tcp://a"}},
                  .grant_again = Duration(0)}) {}

  /// Tensor 1 lies in device memory too, in that segment.
  void commit(VersionNumber number, SegmentIndex first, SegmentIndex second, SegmentIndex on_device) {
    CommittedVersion committed = version(number, first, second);
    committed.segments.push_back(on_device | kOnDevice);
    committed.device = "GPU-a";
    committed.device_places = {{}, {.slab = 0, .offset = on_device * kTensorBytes, .bytes = kTensorBytes}};
    committed.device_slab_bytes = {1 << 20};
    machine_.on_committed(std::move(committed), at(0));
  }
  void say(SessionId session, const std::string& device, std::uint64_t door_token = 0) {
    machine_.on_message("peer" + std::to_string(session),
                        Hello{.session = session,
                              .model = kModel,
                              .host = "here",
                              .door_token = door_token,
                              .channels = bit(ChannelKind::shm) | bit(ChannelKind::zmq),
                              .device = device},
                        at(0));
  }
  std::uint64_t join(SessionId session, const std::string& device) {
    static_cast<void>(machine_.take_actions());
    say(session, device);
    const auto welcome = messages<Welcome, action::Send>(machine_.take_actions()).at(0);
    EXPECT_TRUE(machine_.on_door_open(session, welcome.door_token, at(0)));
    return welcome.door_token;
  }
  Grant want(SessionId session, std::uint64_t request, VersionNumber after, ChannelKind channel = ChannelKind::shm) {
    static_cast<void>(machine_.take_actions());
    machine_.on_message("peer" + std::to_string(session),
                        Want{.session = session, .request = request, .after = after, .channel = channel}, at(0));
    return messages<Grant, action::Send>(machine_.take_actions()).at(0);
  }
  std::vector<SegmentIndex> freed() {
    std::vector<SegmentIndex> all;
    for (const auto& free : actions_of<action::Free>(machine_.take_actions())) {
      all.insert(all.end(), free.segments.begin(), free.segments.end());
    }
    return all;
  }
  /// Of the session that joined first.
  std::string channel_of_first() { return machine_.sessions().at(0).channel; }

  PublisherMachine machine_;
};

TEST_F(DeviceGrants, ASessionOfTheSameGpuGetsThePlaces) {
  join(1, "GPU-a");
  commit(1, 10, 11, 3);
  const Grant grant = want(1, 1, 0);
  EXPECT_EQ(grant.places.size(), 2U);
  ASSERT_EQ(grant.device_places.size(), 2U);
  EXPECT_EQ(grant.device_places[0].bytes, 0U);
  EXPECT_EQ(grant.device_places[1].offset, 3 * kTensorBytes);
  EXPECT_THAT(grant.device_slab_bytes, ElementsAre(1 << 20));
  EXPECT_EQ(channel_of_first(), "cuda_ipc");
}

TEST_F(DeviceGrants, OthersGetNone) {
  join(1, "GPU-b");
  commit(1, 10, 11, 3);
  EXPECT_TRUE(want(1, 1, 0).device_places.empty());
  EXPECT_EQ(channel_of_first(), "shm");
  join(2, "");
  EXPECT_TRUE(want(2, 1, 0).device_places.empty());
  // What is fetched is sent out of host memory.
  join(3, "GPU-a");
  const Grant fetched = want(3, 1, 0, ChannelKind::zmq);
  EXPECT_TRUE(fetched.device_places.empty());
  EXPECT_TRUE(fetched.places.empty());
}

TEST_F(DeviceGrants, WhatIsSaidLastCounts) {
  const std::uint64_t token = join(1, "");
  commit(1, 10, 11, 3);
  EXPECT_TRUE(want(1, 1, 0).device_places.empty());
  say(1, "GPU-a", token);
  commit(2, 12, 13, 4);
  EXPECT_EQ(want(1, 2, 1).device_places.size(), 2U);
  say(1, "", token);
  commit(3, 14, 15, 5);
  EXPECT_TRUE(want(1, 3, 2).device_places.empty());
}

TEST_F(DeviceGrants, SegmentsOfBothKindsAreHeldAndFreedAlike) {
  join(1, "GPU-a");
  commit(1, 10, 11, 3);
  const Grant grant = want(1, 1, 0);
  commit(2, 10, 12, 4);
  EXPECT_TRUE(freed().empty()) << "the session holds version 1";
  machine_.on_message("peer1", Held{.session = 1, .grants_seen = grant.grant}, at(0));
  EXPECT_THAT(freed(), UnorderedElementsAre(11, 3 | kOnDevice));
  commit(3, 13, 12, 4);
  EXPECT_THAT(freed(), ElementsAre(10)) << "version 3 names the segment in device memory too";
}

TEST_F(DeviceGrants, AClosedDoorEndsTheHold) {
  join(1, "GPU-a");
  commit(1, 10, 11, 3);
  want(1, 1, 0);
  commit(2, 12, 13, 4);
  EXPECT_TRUE(freed().empty());
  machine_.on_door_closed(1, at(0));
  EXPECT_THAT(freed(), UnorderedElementsAre(10, 11, 3 | kOnDevice));
}

TEST(DeviceHello, IsSaidAgainWithTheDevice) {
  SubscriberMachine machine({.model = kModel, .host = "here", .session_seed = 9});
  machine.take_device("GPU-a");
  machine.on_start(at(0));
  const auto hello = messages<Hello, action::SendControl>(machine.take_actions()).at(0);
  EXPECT_EQ(hello.device, "GPU-a");
  machine.on_message(Welcome{.session = hello.session, .incarnation = 5, .door = "/d", .door_token = 7}, at(1));
  machine.on_door_open(hello.session, at(2));
  static_cast<void>(machine.take_actions());
  machine.take_device("GPU-a");
  EXPECT_TRUE((messages<Hello, action::SendControl>(machine.take_actions()).empty()));
  machine.take_device("GPU-b");
  const auto again = messages<Hello, action::SendControl>(machine.take_actions()).at(0);
  EXPECT_EQ(again.device, "GPU-b");
  EXPECT_EQ(again.session, hello.session);
  EXPECT_EQ(again.door_token, 7U);
}

TEST(DeviceHello, IsSaidAgainWhenTheDoorOpensIfItWasUnderWayWithoutTheDevice) {
  SubscriberMachine machine({.model = kModel, .host = "here", .session_seed = 9});
  machine.on_start(at(0));
  const auto hello = messages<Hello, action::SendControl>(machine.take_actions()).at(0);
  EXPECT_EQ(hello.device, "");
  machine.take_device("GPU-a");
  machine.on_message(Welcome{.session = hello.session, .incarnation = 5, .door = "/d", .door_token = 7}, at(1));
  static_cast<void>(machine.take_actions());
  machine.on_door_open(hello.session, at(2));
  const auto again = messages<Hello, action::SendControl>(machine.take_actions()).at(0);
  EXPECT_EQ(again.device, "GPU-a");
  EXPECT_EQ(again.door_token, 7U);
}

}  // namespace
}  // namespace freshet::protocol::test
