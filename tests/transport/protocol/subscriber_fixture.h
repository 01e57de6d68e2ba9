// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A SubscriberMachine, and what a test says to it in the publisher's place.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "tests/transport/protocol/machine_fixture.h"
#include "transport/protocol/subscriber/subscriber_machine.h"

namespace freshet::protocol::test {

inline constexpr std::uint64_t kIncarnation = 5;

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
          {.model = kModel, .incarnation = incarnation, .number = number, .current = {.version = number}}, at(ms));
    });
  }
  void tick(std::int64_t ms) {
    when([&] { machine_.on_tick(at(ms)); });
  }
  /// Up to `following`; whoever is there has version `newest`.
  void connect(VersionNumber newest, std::int64_t ms = 0, std::uint64_t incarnation = kIncarnation) {
    if (session_ == 0) when([&] { machine_.on_start(at(ms)); });
    ASSERT_THAT(sent<Hello>(), ::testing::SizeIs(1));
    session_ = sent<Hello>()[0].session;
    receive(Welcome{.session = session_,
                    .incarnation = incarnation,
                    .door_token = 77,
                    .newest = newest,
                    .keeps_wants = keeps_wants_},
            ms);
    ASSERT_THAT(actions<action::OpenDoor>(), ::testing::SizeIs(1));
    EXPECT_EQ(actions<action::OpenDoor>()[0].token, 77u);
    when([&] { machine_.on_door_open(session_, at(ms)); });
  }
  Grant grant_for(const Want& want, VersionNumber number) {
    return {.session = want.session, .request = want.request, .grant = ++grants_, .number = number};
  }
  /// Answers the Want of the moment with a version, and lets it be installed.
  void serve(VersionNumber number, std::int64_t ms = 0) {
    ASSERT_THAT(sent<Want>(), ::testing::SizeIs(1));
    receive(grant_for(sent<Want>()[0], number), ms);
    ASSERT_THAT(actions<action::Install>(), ::testing::SizeIs(1));
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

}  // namespace freshet::protocol::test
