// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A publisher's machine that offers a data channel, for the tests of its leases.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tests/transport/protocol/machine_fixture.h"
#include "transport/protocol/publisher/publisher_machine.h"

namespace freshet::protocol::test {

class PublisherLeases : public ::testing::Test {
 protected:
  static PublisherMachine::Options options(std::size_t retained = 1) {
    return {.model = kModel,
            .incarnation = 5,
            .door = "door",
            .host = "here",
            .channels = {{.kind = ChannelKind::zmq, .address = "tcp://a"}},
            .token_seed = 11,
            .every_queue_versions_max = 8,
            .grant_again = Duration(0),
            .retained_versions = retained};
  }
  explicit PublisherLeases(std::size_t retained = 1)
      : machine_(std::make_unique<PublisherMachine>(options(retained))) {}

  template <typename M>
  std::vector<M> sent() {
    return messages<M, action::Send>(actions_);
  }
  template <typename A>
  std::vector<A> actions() {
    return actions_of<A>(actions_);
  }
  std::vector<SegmentIndex> freed() {
    std::vector<SegmentIndex> all;
    for (const auto& free : actions<action::Free>()) all.insert(all.end(), free.segments.begin(), free.segments.end());
    return all;
  }
  template <typename Event>
  void when(Event event) {
    event();
    actions_ = machine_->take_actions();
  }
  void receive(Message message, std::int64_t ms = 0, const Peer& peer = "far") {
    when([&] { machine_->on_message(peer, std::move(message), at(ms)); });
  }
  /// Versions own both their tensors: segments 2n and 2n + 1.
  void commit(VersionNumber number, std::uint64_t missed_before = 0) {
    const auto first = static_cast<SegmentIndex>(2 * number);
    CommittedVersion committed = version(number, first, first + 1);
    committed.missed_before = missed_before;
    when([&] { machine_->on_committed(std::move(committed), at(0)); });
  }
  void tick(std::int64_t ms) {
    when([&] { machine_->on_tick(at(ms)); });
  }
  void join(SessionId session, Mode mode = Mode::latest, VersionNumber after = 0, std::int64_t ms = 0,
            const Peer& peer = "far") {
    receive({Hello{.session = session,
                   .model = kModel,
                   .mode = mode,
                   .host = "elsewhere",
                   .after = after,
                   .channels = bit(ChannelKind::zmq)}},
            ms, peer);
    ASSERT_THAT(sent<Welcome>(), ::testing::SizeIs(1));
  }
  std::optional<Grant> want(SessionId session, std::uint64_t request, VersionNumber after, std::int64_t ms = 0,
                            ChannelKind channel = ChannelKind::zmq) {
    receive(Want{.session = session, .request = request, .after = after, .channel = channel}, ms);
    const auto grants = sent<Grant>();
    return grants.empty() ? std::nullopt : std::optional(grants[0]);
  }
  void lease_closed(LeaseId lease) {
    when([&] { machine_->on_lease_closed(lease, at(0)); });
  }

  std::unique_ptr<PublisherMachine> machine_;
  std::vector<PublisherAction> actions_;
};

}  // namespace freshet::protocol::test
