#pragma once

/// A simulated subscriber process: the real machine, mappings of the publisher's memory, and readers that pin the
/// served version and compare every byte with what the trainer wrote.

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/sim/host.h"
#include "transport/protocol/subscriber_machine.h"

namespace freshet::sim {

class SimSubscriber {
 public:
  struct Kind {
    std::string label;
    protocol::Mode mode = protocol::Mode::latest;
    bool stores = false;  ///< A sink: keeps what it gets, also across its crashes.
    Duration pin_max = std::chrono::milliseconds(300);
    Duration take_max = std::chrono::milliseconds(50);
  };
  SimSubscriber(Host& host, Kind kind);

  Process& process() { return process_; }
  const Kind& kind() const { return kind_; }
  void start();
  void kill();
  /// Says goodbye; nothing may be read after it.
  void leave();
  /// The control connection breaks and comes back: the publisher sees another peer.
  void reconnect() { ++connections_; }

  protocol::Peer peer() const;
  void receive(const protocol::Peer& addressed_to, const protocol::Message& message);
  void receive_news(const std::string& socket, const protocol::Announcement& news);
  void door_opened(const std::string& door, protocol::SessionId session, std::shared_ptr<ArenaMemory> memory);
  void door_closed(protocol::SessionId session);

  /// Whether some reader of this process may look at that place.
  bool could_read(const ArenaMemory& memory, const SegmentPlace& place) const;
  bool follows(const std::string& socket) const { return life_ && life_->announcements == socket; }
  /// The version that it serves, or, of a sink, the newest that it ever stored.
  VersionNumber arrived() const {
    if (kind_.stores) return stored_;
    return life_ && life_->served ? life_->served->number : 0;
  }
  const protocol::SubscriberMachine& machine() const { return life_->machine; }
  std::uint64_t installs() const { return installs_; }
  std::uint64_t gaps() const { return gaps_; }

 private:
  struct Mapped {
    protocol::SessionId session = 0;
    VersionNumber number = 0;
    std::shared_ptr<ArenaMemory> memory;
    std::vector<SegmentPlace> places;
    std::uint64_t pins = 0;
    std::uint64_t epoch = 0;  ///< Under which it was granted.
    bool abandoned = false;
  };
  using MappedPointer = std::shared_ptr<Mapped>;
  struct Life {
    explicit Life(protocol::SubscriberMachine::Options options) : machine(std::move(options)) {}
    protocol::SubscriberMachine machine;
    std::string announcements;
    std::map<protocol::SessionId, std::string> doors;  ///< Open or being opened.
    std::map<protocol::SessionId, std::shared_ptr<ArenaMemory>> memories;
    std::map<Digest, std::shared_ptr<const Architecture>> architectures;
    std::set<MappedPointer> readable;
    MappedPointer served;
    MappedPointer installing;
    MappedPointer staged;
    std::pair<std::uint64_t, VersionNumber> highest;  ///< Epoch and number.
    std::uint64_t ticks = 0;
  };

  void hang_up(const std::string& door, protocol::SessionId session);
  void pump();
  void carry_out(const protocol::action::SendControl& send);
  void carry_out(const protocol::action::OpenDoor& open);
  void carry_out(const protocol::action::LeaveDoor& leave);
  void carry_out(protocol::action::Install install);
  void carry_out(const protocol::action::Abandon& abandon);
  void carry_out(const protocol::action::SwapStaged& swap);
  void carry_out(const protocol::action::DropStaged& drop);
  void finish(const protocol::action::Install& install, const MappedPointer& mapped);
  void carry_out(const protocol::action::OpenChannel&) {}
  void carry_out(const protocol::action::CloseChannel&) {}
  Status install(const protocol::Grant& grant, const MappedPointer& mapped);
  Status check_manifest(const protocol::Grant& grant);
  void serve(const MappedPointer& mapped, std::uint64_t epoch);
  void account(const protocol::Grant& grant);
  void schedule_read();
  void hold(const MappedPointer& mapped, Duration at_most, bool is_delivery);
  void look(const Mapped& mapped) const;
  void unpin(const MappedPointer& mapped);
  void let_go_if_unread(const MappedPointer& mapped);

  Host& host_;
  Kind kind_;
  Process process_;
  std::unique_ptr<Life> life_;
  std::uint64_t connections_ = 0;
  std::uint64_t installs_ = 0;

  // A sink's repository, and what any `every` subscriber knows of what it missed.
  VersionNumber stored_ = 0;
  std::uint64_t refused_gap_ = 0;  ///< Of versions refused since.
  std::uint64_t gaps_ = 0;
};

}  // namespace freshet::sim
