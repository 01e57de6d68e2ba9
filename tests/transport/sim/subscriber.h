// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A simulated subscriber process: the real machine, mappings of a publisher's memory or versions that it fetched into
/// its own, and readers that pin the served version and compare every byte with what the trainer wrote.

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tests/transport/sim/data/fetcher.h"
#include "tests/transport/sim/host.h"
#include "transport/protocol/subscriber/subscriber_machine.h"

namespace freshet::sim {

class SimSubscriber {
 public:
  struct Kind {
    std::string label;
    protocol::Mode mode = protocol::Mode::latest;
    bool stores = false;  ///< A sink: keeps what it gets, also across its crashes.
    Duration pin_max = std::chrono::milliseconds(300);
    Duration take_max = std::chrono::milliseconds(50);
    std::string host = "here";
    std::uint32_t channels = protocol::bit(protocol::ChannelKind::shm);
    std::vector<std::string> sources = {"trainer"};  ///< In order of preference, as its directory says.
    std::string device = {};                         ///< The GPU whose memory it maps too; empty: none.
  };
  SimSubscriber(Host& host, Kind kind);
  virtual ~SimSubscriber() = default;

  Process& process() { return process_; }
  const Kind& kind() const { return kind_; }
  virtual void start();
  virtual void kill();
  /// Says goodbye; nothing may be read after it.
  void leave();
  /// The control connection breaks and comes back: the publisher sees another peer.
  void reconnect() { ++connections_; }

  protocol::Peer peer() const;
  void receive(const protocol::Peer& addressed_to, const protocol::Message& message);
  void door_opened(const Knock& knock, std::shared_ptr<ArenaMemory> memory);
  void door_closed(const Knock& knock);
  void connection_made(const ConnectionPointer& connection) { life_->fetcher.connection_made(connection); }
  void connection_lost(const ConnectionPointer& connection) { life_->fetcher.connection_lost(connection); }
  void refused(const ConnectionPointer& connection, std::uint64_t request, const Error& why) {
    life_->fetcher.refused(connection, request, why);
  }
  void piece_came(const ConnectionPointer& connection, std::uint64_t request, std::uint32_t tensor,
                  std::uint64_t offset, Bytes piece) {
    life_->fetcher.piece_came(connection, request, tensor, offset, piece);
  }

  /// What a relay does about what it fetches, as it comes.
  virtual std::shared_ptr<Coming> offer(const protocol::Grant&, const std::shared_ptr<const Manifest>&,
                                        const OwnArena::Plan&, const ConnectionPointer&) {
    return nullptr;
  }
  virtual void more_came() {}
  virtual void withdraw() {}

  /// More than memory.
  bool has_other_ways() const { return kind_.channels != protocol::bit(protocol::ChannelKind::shm); }
  /// Whether some reader of this process may look at that place.
  bool could_read(const ArenaMemory& memory, const SegmentPlace& place) const;
  /// The version that it serves, or, of a sink, the newest that it ever stored.
  VersionNumber arrived() const {
    if (kind_.stores) return stored_;
    return life_ && life_->served ? life_->served->number : 0;
  }
  const protocol::SubscriberMachine& machine() const { return life_->machine; }
  std::uint64_t installs() const { return installs_; }
  std::uint64_t gaps() const { return gaps_; }
  std::uint64_t fetches() const { return fetches_; }
  std::uint64_t installs_on_device() const { return installs_on_device_; }
  const OwnArena& arena() const { return life_->fetcher.arena(); }

 protected:
  /// A version that can be read here.
  struct Mapped {
    protocol::SessionId session = 0;
    VersionNumber number = 0;
    std::optional<Fetcher::Fetched> fetched;  ///< Into our own arena.
    std::shared_ptr<const Manifest> manifest;
    std::shared_ptr<ArenaMemory> memory;
    std::vector<SegmentPlace> places;
    std::vector<SegmentPlace> device_places;
    std::uint64_t pins = 0;
    std::uint64_t epoch = 0;  ///< Under which it was granted.
    bool abandoned = false;
  };
  /// It was fetched, and is about to be served.
  virtual void on_fetched(const Mapped&, const protocol::Grant&) {}
  void see_higher(VersionNumber number);
  OwnArena& own_arena() { return life_->fetcher.arena(); }
  Host& host() { return host_; }
  bool is_alive() const { return life_ != nullptr; }

 private:
  using MappedPointer = std::shared_ptr<Mapped>;
  struct Life {
    Life(Host& host, SimSubscriber& owner, protocol::SubscriberMachine::Options options)
        : machine(std::move(options)), fetcher(host, owner, owner.fetch_events()) {}
    protocol::SubscriberMachine machine;
    Fetcher fetcher;
    std::size_t source = 0;  ///< In kind_.sources.
    int unanswered_hellos = 0;
    std::map<protocol::SessionId, Knock> doors;  ///< Open or being opened.
    std::map<protocol::SessionId, std::shared_ptr<ArenaMemory>> memories;
    std::map<Digest, std::shared_ptr<const Architecture>> architectures;
    std::set<MappedPointer> readable;
    MappedPointer served;
    MappedPointer installing;
    std::optional<protocol::action::Install> fetching;
    MappedPointer staged;
    std::pair<std::uint64_t, VersionNumber> highest;            ///< Epoch and number.
    std::map<protocol::SessionId, std::uint64_t> incarnations;  ///< Of whom each session is with.
    std::uint64_t ticks = 0;
  };

  Fetcher::Events fetch_events();
  Source* source() const;
  void look_up_source();
  void hang_up(const Knock& knock);
  bool is_mine(const Knock& knock) const;
  void pump();
  void carry_out(const protocol::action::SendControl& send);
  void carry_out(const protocol::action::OpenDoor& open);
  void carry_out(const protocol::action::LeaveDoor& leave);
  void carry_out(protocol::action::Install install);
  void carry_out(const protocol::action::Abandon& abandon);
  void carry_out(const protocol::action::SwapStaged& swap);
  void carry_out(const protocol::action::DropStaged& drop);
  void carry_out(const protocol::action::OpenChannel& open);
  void carry_out(const protocol::action::CloseChannel& close);
  void map(const protocol::action::Install& install, const MappedPointer& mapped);
  void fetch(const protocol::action::Install& install);
  void on_fetch_done(const Result<Fetcher::Fetched>& fetched);
  void finish(const protocol::Grant& grant, bool stage, const MappedPointer& mapped, const Status& status);
  Status check_mapped(const protocol::Grant& grant, const MappedPointer& mapped);
  Result<std::shared_ptr<const Manifest>> manifest_of(const protocol::Grant& grant);
  Status maybe_refuse();
  void let_go(const MappedPointer& mapped);
  void serve(const MappedPointer& mapped, std::uint64_t epoch);
  void account(const protocol::Grant& grant, const Manifest& manifest);
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

  std::uint64_t fetches_ = 0;
  std::uint64_t installs_on_device_ = 0;

  // A sink's repository, and what any `every` subscriber knows of what it missed.
  VersionNumber stored_ = 0;
  std::uint64_t stored_writer_ = 0;  ///< The incarnation that wrote it.
  std::uint64_t stored_from_ = 0;    ///< The incarnation that it came from (a relay's, for one); 0: several.
  std::uint64_t gaps_ = 0;
};

}  // namespace freshet::sim
