// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A publisher's machine and a subscriber's, joined by a network and a directory that lose nothing and take no time, on
/// a clock that only the test advances. What comes about without an advance waited for no heartbeat and for no retry.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "tests/transport/protocol/machine_fixture.h"
#include "transport/protocol/publisher/publisher_machine.h"
#include "transport/protocol/publisher/waiting_hellos.h"
#include "transport/protocol/subscriber/subscriber_machine.h"

namespace freshet::protocol::test {

class MachinePair {
 public:
  /// By `shm` the two are on one host, else not.
  explicit MachinePair(ChannelKind channel, SubscriberMachine::Options subscriber = {}) : channel_(channel) {
    subscriber.model = kModel;
    subscriber.session_seed = 1;
    subscriber.host = "here";
    if (channel != ChannelKind::shm) subscriber.channels.usable = bit(channel);
    subscriber_ = std::make_unique<SubscriberMachine>(std::move(subscriber));
  }

  void open_publisher() {
    PublisherMachine::Options options{.model = kModel,
                                      .incarnation = ++incarnation_,
                                      .door = "door",
                                      .host = channel_ == ChannelKind::shm ? "here" : "elsewhere",
                                      .channels = {},
                                      .token_seed = incarnation_,
                                      .every_queue_versions_max = 64,
                                      .retained_versions = 8,
                                      .activation = {.current = record_}};
    if (channel_ != ChannelKind::shm) options.channels = {{.kind = channel_, .address = "tcp://a"}};
    publisher_ = std::make_unique<PublisherMachine>(std::move(options));
    // As a hub does.
    for (auto& waiting : hellos_.take(kModel, now_)) publisher_->on_message(waiting.peer, waiting.hello, now_);
    settle();
  }
  /// The hub stays, and says that nobody publishes the model.
  void close_publisher() {
    const Ended ended = end_publisher();
    tell(ended);
  }
  /// The next one is there before the subscriber hears that the one before ended.
  void replace_publisher() {
    const Ended ended = end_publisher();
    open_publisher();
    tell(ended);
  }
  void start_subscriber() {
    subscriber_->on_start(now_);
    settle();
  }
  VersionNumber commit() {
    const VersionNumber number = ++newest_;
    publisher_->on_committed(version(number, 2 * number, 2 * number + 1), now_);
    settle();
    return number;
  }
  /// Version 0: the newest, without a hold.
  void activate(VersionNumber number) {
    answer_.reset();
    publisher_->on_message("operator",
                           Activate{.model = kModel,
                                    .request = ++asked_,
                                    .expected = publisher_->activation().current(),
                                    .desired = {.version = number, .hold = number != 0}},
                           now_);
    settle();
  }
  /// Lets time pass, and both do what is due in it.
  void advance(Duration by) {
    const Time end = now_ + by;
    for (;;) {
      const Time next = std::min(publisher_ ? publisher_->next_tick() : Time::max(), subscriber_->next_tick());
      if (next > end) break;
      now_ = std::max(now_, next);
      if (publisher_ && publisher_->next_tick() <= now_) publisher_->on_tick(now_);
      if (subscriber_->next_tick() <= now_) subscriber_->on_tick(now_);
      settle();
    }
    now_ = end;
  }
  /// Until nobody has anything to do any more at this time.
  void settle() {
    for (bool any = true; any;) {
      any = false;
      if (publisher_) {
        for (auto& action : publisher_->take_actions()) {
          any = true;
          std::visit([this](auto& a) { carry_out(a); }, action);
        }
      }
      for (auto& action : subscriber_->take_actions()) {
        any = true;
        std::visit([this](auto& a) { carry_out(a); }, action);
      }
    }
  }

  Time now() const { return now_; }
  PublisherMachine& publisher() { return *publisher_; }
  SubscriberMachine& subscriber() { return *subscriber_; }
  VersionNumber serving() const { return subscriber_->position().serving(); }
  /// What came of the last activate(); nothing yet.
  const std::optional<Activated>& answer() const { return answer_; }
  std::size_t grants() const { return grants_; }
  /// As the publisher's stat() tells it.
  VersionNumber told_serving() const {
    const auto sessions = publisher_->sessions();
    return sessions.empty() ? 0 : sessions.front().serving;
  }

 private:
  struct Ended {
    std::vector<Message> messages;
    std::set<SessionId> doors;
  };
  Ended end_publisher() {
    publisher_->on_removed();
    Ended ended{.messages = {}, .doors = std::exchange(doors_, {})};
    // Answers to what was on its way, a Want or a Held.
    for (const SessionId session : ended.doors) ended.messages.push_back(UnknownSession{.session = session});
    for (auto& action : publisher_->take_actions()) {
      if (auto* send = std::get_if<action::Send>(&action)) ended.messages.push_back(std::move(send->message));
    }
    publisher_.reset();
    return ended;
  }
  void tell(const Ended& ended) {
    for (const Message& message : ended.messages) subscriber_->on_message(message, now_);
    settle();
    for (const SessionId session : ended.doors) subscriber_->on_door_closed(session, now_);
    settle();
  }

  void carry_out(action::Send& send) {
    if (send.peer == "operator") {
      if (auto* activated = std::get_if<Activated>(&send.message)) answer_ = std::move(*activated);
      return;
    }
    grants_ += std::holds_alternative<Grant>(send.message) ? 1 : 0;
    subscriber_->on_message(std::move(send.message), now_);
  }
  void carry_out(action::Announce& announce) {
    if (!announce.peers.empty()) subscriber_->on_announcement(announce.announcement, now_);
  }
  void carry_out(action::Free&) {}
  void carry_out(action::CloseDoor& close) {
    doors_.erase(close.session);
    subscriber_->on_door_closed(close.session, now_);
  }
  void carry_out(action::OpenLease&) {}
  void carry_out(action::CloseLease& close) { publisher_->on_lease_closed(close.lease, now_); }
  void carry_out(action::SwapCurrent& swap) {
    record_ = swap.desired;
    publisher_->on_current_swapped(swap.desired, now_);
  }

  void carry_out(action::SendControl& send) {
    if (publisher_) return publisher_->on_message("peer", std::move(send.message), now_);
    if (auto* hello = std::get_if<Hello>(&send.message)) {
      hellos_.add("peer", *hello, {}, now_);
      subscriber_->on_message(
          Refusal{.session = hello->session, .code = Code::not_found, .message = "it is not published here"}, now_);
    } else {
      std::visit(
          [this](const auto& m) {
            if constexpr (requires { m.session; }) subscriber_->on_message(UnknownSession{.session = m.session}, now_);
          },
          send.message);
    }
  }
  void carry_out(action::OpenDoor& open) {
    const bool is_open = publisher_ && publisher_->on_door_open(open.session, open.token, now_);
    if (!is_open) return subscriber_->on_door_closed(open.session, now_);
    doors_.insert(open.session);
    subscriber_->on_door_open(open.session, now_);
  }
  void carry_out(action::LeaveDoor& leave) {
    if (doors_.erase(leave.session) != 0 && publisher_) publisher_->on_door_closed(leave.session, now_);
  }
  void carry_out(action::Install& install) {
    const std::pair key{install.grant.session, install.grant.number};
    subscriber_->on_installed(key.first, key.second, {}, now_);
    if (!install.stage) serve(key);
  }
  void carry_out(action::OpenChannel& open) { subscriber_->on_channel_open(open.session, now_); }
  void carry_out(action::CloseChannel&) {}
  void carry_out(action::Abandon&) {}
  void carry_out(action::SwapStaged& swap) { serve({swap.session, swap.number}); }
  void carry_out(action::DropStaged& drop) { subscriber_->on_unpinned(drop.session, drop.number, now_); }

  /// Nobody reads the version before any more.
  void serve(std::pair<SessionId, VersionNumber> key) {
    const auto before = std::exchange(served_, key);
    if (before.second != 0) subscriber_->on_unpinned(before.first, before.second, now_);
    subscriber_->on_taken(key.second, now_);
  }

  const ChannelKind channel_;
  Time now_ = at(0);
  std::unique_ptr<PublisherMachine> publisher_;
  std::unique_ptr<SubscriberMachine> subscriber_;
  WaitingHellos hellos_;
  Current record_;
  std::uint64_t incarnation_ = 0;
  std::uint64_t asked_ = 0;
  VersionNumber newest_ = 0;
  std::set<SessionId> doors_;
  std::pair<SessionId, VersionNumber> served_;
  std::optional<Activated> answer_;
  std::size_t grants_ = 0;
};

}  // namespace freshet::protocol::test
