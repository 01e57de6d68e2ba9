// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A subscriber of the group's simulation: a member, or one that merely follows what is current.

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "tests/transport/sim/group/group_host.h"
#include "transport/protocol/publisher/publisher_session.h"
#include "transport/protocol/subscriber/subscriber_machine.h"

namespace freshet::sim {

class GroupMember {
 public:
  struct Kind {
    std::string label;
    bool staged = true;
    Duration install_max = std::chrono::milliseconds(50);
  };
  GroupMember(GroupHost& host, Kind kind) : host_(host), kind_(std::move(kind)), process_(host.world) {}

  Process& process() { return process_; }
  const Kind& kind() const { return kind_; }
  std::string label() const { return kind_.label + format_life(); }
  protocol::Peer peer() const { return kind_.label + "/" + format_life(); }
  protocol::SessionId session() const { return session_; }
  void start();
  void kill();
  void jump(Duration by) { clock_offset_ += by; }
  void cut(bool to_publisher, bool from_publisher) { cut_to_ = to_publisher, cut_from_ = from_publisher; }
  bool hears() const { return !cut_from_; }

  void receive(const protocol::Peer& addressed_to, const protocol::Message& message);
  void door_opened(protocol::SessionId session, std::uint64_t incarnation);
  void door_closed(protocol::SessionId session);
  void publisher_died(std::uint64_t incarnation);

  /// By its own clock. Also what a reader in this process would see.
  bool is_in_standing() const;
  bool has(VersionNumber number) const;
  /// Property 4; to be called often.
  void look() const;
  std::pair<std::uint64_t, VersionNumber> served() const { return served_; }
  const protocol::SubscriberMachine& machine() const { return *machine_; }

 private:
  /// An Install that is under way.
  struct Installing {
    protocol::SessionId session = 0;
    VersionNumber number = 0;
    std::uint64_t epoch = 0;
    bool stage = false;
    bool abandoned = false;
  };

  std::string format_life() const { return std::to_string(process_.life()); }
  Time clock() const { return host_.world.now() + clock_offset_; }
  void pump();
  void carry_out(const protocol::action::SendControl& send);
  void carry_out(const protocol::action::OpenDoor& open);
  void carry_out(const protocol::action::LeaveDoor& leave);
  void carry_out(const protocol::action::Install& install);
  void carry_out(const protocol::action::OpenChannel&) {}
  void carry_out(const protocol::action::CloseChannel&) {}
  void carry_out(const protocol::action::Abandon& abandon);
  void carry_out(const protocol::action::SwapStaged& swap);
  void carry_out(const protocol::action::DropStaged& drop);
  void finish(const std::shared_ptr<Installing>& install);
  void serve(protocol::SessionId session, std::uint64_t epoch, VersionNumber number);
  void unpin_later(protocol::SessionId session, VersionNumber number);
  void check_was_current(std::uint64_t epoch, VersionNumber number) const;

  GroupHost& host_;
  Kind kind_;
  Process process_;
  std::unique_ptr<protocol::SubscriberMachine> machine_;
  Duration clock_offset_{};
  bool cut_to_ = false;
  bool cut_from_ = false;
  protocol::SessionId session_ = 0;                     ///< The last that it said Hello with.
  std::map<protocol::SessionId, std::uint64_t> doors_;  ///< To the incarnation; open or being opened.
  std::shared_ptr<Installing> installing_;
  std::pair<protocol::SessionId, VersionNumber> staged_;  ///< Number 0: nothing.
  std::pair<std::uint64_t, VersionNumber> served_;
  protocol::SessionId served_through_ = 0;
  std::uint64_t ticks_ = 0;
};

}  // namespace freshet::sim
