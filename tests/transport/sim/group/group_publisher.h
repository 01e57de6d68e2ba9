// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The publisher of the group's simulation: commits versions without bytes, asks the directory, and lives and dies.

#include <memory>
#include <set>

#include "tests/transport/sim/group/group_host.h"
#include "transport/protocol/publisher/publisher_machine.h"

namespace freshet::sim {

class GroupPublisher {
 public:
  explicit GroupPublisher(GroupHost& host) : host_(host), process_(host.world) {}

  Process& process() { return process_; }
  void start();
  void kill();
  void stop_training() { training_ = false; }
  void jump(Duration by) { clock_offset_ += by; }

  void receive(const protocol::Peer& peer, const protocol::Message& message);
  void knock(GroupMember& member, std::uint64_t incarnation, protocol::SessionId session, std::uint64_t token);
  void hang_up(std::uint64_t incarnation, protocol::SessionId session);
  /// Somebody asks for another version, or lets go of the hold.
  void ask(bool only_release);

  const protocol::PublisherMachine& machine() const { return *machine_; }
  std::uint64_t incarnation() const { return incarnation_; }

 private:
  Time clock() const { return host_.world.now() + clock_offset_; }
  void train();
  void pump();
  void carry_out(const protocol::action::Send& send);
  void carry_out(const protocol::action::Announce& announce);
  void carry_out(const protocol::action::Free&) {}
  void carry_out(const protocol::action::CloseDoor& close);
  void carry_out(const protocol::action::OpenLease&) {}
  void carry_out(const protocol::action::CloseLease&) {}
  void carry_out(const protocol::action::SwapCurrent& swap);
  void reach_directory(const protocol::action::SwapCurrent& swap);
  void hear_directory(Result<protocol::Current> answer);
  void check_staged(VersionNumber candidate) const;
  /// Property 5.
  void check_followed(const protocol::Current& current) const;
  void forge_words();
  void take_note();

  GroupHost& host_;
  Process process_;
  std::unique_ptr<protocol::PublisherMachine> machine_;
  Duration clock_offset_{};
  std::uint64_t incarnation_ = 0;
  std::uint64_t sequence_ = 0;
  std::uint64_t requests_ = 0;
  std::set<std::uint64_t> for_all_;      ///< Requests of no group alone.
  std::set<protocol::SessionId> heard_;  ///< Have sent a Ping: of others the publisher knows nothing.
  std::uint64_t ticks_ = 0;
  protocol::Current asked_for_;  ///< Of the directory, last.
  SegmentIndex segments_ = 0;
  bool training_ = true;
};

}  // namespace freshet::sim
