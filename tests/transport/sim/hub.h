// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The shell around a publisher's machine in one life of a process: its sockets, its doors, its data channels. The
/// trainer's process has one, and so has a relay's.

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "tests/transport/sim/data/data_server.h"
#include "tests/transport/sim/host.h"
#include "transport/protocol/publisher/publisher_machine.h"

namespace freshet::sim {

class Hub {
 public:
  struct Options {
    std::string name;
    std::string host;
    std::uint64_t incarnation = 0;
    std::size_t retained_versions = 1;
    std::shared_ptr<ArenaMemory> memory;
    bool follows = false;                 ///< A relay's.
    protocol::Current* record = nullptr;  ///< The directory's, of what is current; outlives every life.
    std::function<void(std::span<const SegmentIndex>)> on_free;
    std::function<void(VersionNumber)> on_number_floor;
  };
  Hub(Host& host, Process& process, Options options);

  const protocol::PublisherMachine& machine() const { return machine_; }
  DataServer& data() { return data_; }
  std::string address(const std::string& of) const;  ///< "OF/NAME/INCARNATION".
  std::uint64_t incarnation() const { return options_.incarnation; }
  std::size_t retained_versions() const { return options_.retained_versions; }

  void commit(protocol::CommittedVersion version);
  void coming(std::shared_ptr<Coming> coming);
  void not_coming(VersionNumber number);
  void current_seen(const protocol::Current& pair);
  void shed(std::uint64_t bytes);

  void receive(const protocol::Peer& peer, const protocol::Message& message);
  void knock(const Knock& knock, SimSubscriber& subscriber);
  void connect(const ConnectionPointer& connection);
  /// The kernel closes every end that a dead process had.
  void reader_died(const SimSubscriber& subscriber, std::uint64_t life);
  void hang_up(const Knock& knock);
  /// The process is about to die: the kernel tells the other ends.
  void died();

 private:
  struct DoorEnd {
    Knock knock;
    SimSubscriber* subscriber = nullptr;
    std::uint64_t subscriber_life = 0;
  };
  void pump();
  void tell_closed(const DoorEnd& end);
  void carry_out(const protocol::action::Send& send);
  void carry_out(const protocol::action::Announce& announce);
  void carry_out(const protocol::action::Free& free);
  void carry_out(const protocol::action::CloseDoor& close);
  void carry_out(const protocol::action::OpenLease& open) { data_.open_lease(open); }
  void carry_out(const protocol::action::SwapCurrent& swap);
  void carry_out(const protocol::action::CloseLease& close) { data_.close_lease(close); }
  void break_rules();

  Host& host_;
  Process& process_;
  Options options_;
  protocol::PublisherMachine machine_;
  std::map<VersionNumber, protocol::CommittedVersion> committed_;  ///< Those that the machine has, at least.
  std::shared_ptr<Coming> coming_;
  DataServer data_;
  std::map<protocol::SessionId, DoorEnd> doors_;
  std::uint64_t ticks_ = 0;
};

/// A process that others can subscribe at.
class Source {
 public:
  virtual ~Source() = default;
  virtual const std::string& name() const = 0;
  virtual Process& server_process() = 0;
  virtual Hub* hub() = 0;  ///< Nothing while it is dead.
};

}  // namespace freshet::sim
