#pragma once

/// The publisher's half of the control protocol, for one model: sessions, holds, queues, heartbeats, and which segments may
/// be written again. Handed events and a time, returns actions; opens no socket, reads no clock, starts no thread.
/// Owned by its loop thread (or by the simulator).
///
/// Rules:
///   - A version is granted only to a session whose door is open, and the grant is a hold that ends with a Held message
///     that leaves it out, with Bye, or with the closing of the door: never with a timer. (A stopped reader keeps its door.)
///   - A session that has been silent for `silent_after` is marked so; if its door is not open it is forgotten.
///   - For an `every` session, committed versions after its position are held in its queue, up to a limit; past the limit,
///     or when the arena needs room (shed_queues), the oldest go and are counted in the next grant's gap_before. The newest
///     version is never shed.

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "core/arena.h"
#include "core/clock.h"
#include "transport/protocol/messages.h"

namespace freshet::protocol {

/// Whom a message came from, as the shell knows it (a ROUTER identity); a reply goes to the same.
using Peer = std::string;

namespace action {
struct Send {
  Peer peer;
  Message message;
};
struct Announce {
  Announcement announcement;
};
/// These segments may be written again.
struct Free {
  std::vector<SegmentIndex> segments;
};
/// The session ended: its door, if still open, is to be closed.
struct CloseDoor {
  SessionId session = 0;
};
}  // namespace action
using PublisherAction = std::variant<action::Send, action::Announce, action::Free, action::CloseDoor>;

class PublisherMachine {
 public:
  struct Options {
    std::string model;
    RunId run;
    std::uint64_t incarnation = 0;
    std::string announcements;
    std::string door;
    std::string host;
    std::uint64_t token_seed = 0;
    std::size_t every_queue_versions_max = 64;
    std::size_t sessions_max = 4096;
    Duration silent_after = std::chrono::milliseconds(1000);
  };
  explicit PublisherMachine(Options options);

  /// A version was sealed. Becomes the newest, is announced, and is queued for `every` sessions.
  struct Committed {
    std::shared_ptr<const Manifest> manifest;
    std::vector<std::byte> encoded_manifest;
    std::vector<SegmentIndex> segments;
    std::vector<SegmentPlace> places;
    std::vector<std::uint64_t> slab_bytes;
    std::int64_t publish_started_ns = 0;
  };
  void on_committed(Committed version, Time now);

  void on_message(const Peer& peer, Message message, Time now);

  /// Whether this is a session of this model: a shell that serves several models routes by it.
  bool knows(SessionId session) const;

  /// The shell accepted a door connection that showed this session's token. False: unknown, close it.
  bool on_door_open(SessionId session, std::uint64_t token, Time now);
  void on_door_closed(SessionId session, Time now);

  /// Gives up queued, not yet granted versions, oldest first, until nothing is left to give up or `segments_wanted` bytes
  /// were freed. Called when a capture finds no room.
  void shed_queues(std::uint64_t bytes_wanted, Time now);

  void on_tick(Time now);
  Time next_tick() const;  ///< When on_tick should be called at the latest.

  std::vector<PublisherAction> take_actions();

  /// The highest number that any subscriber has seen: the next version must be numbered above it.
  VersionNumber number_floor() const { return number_floor_; }

  struct SessionStat {
    std::string label;
    std::int32_t pid = 0;
    Mode mode = Mode::latest;
    bool silent = false;
    VersionNumber serving = 0;
    std::vector<VersionNumber> held;
    std::uint64_t queued_versions = 0;
    std::uint64_t gaps = 0;
  };
  std::vector<SessionStat> sessions() const;
  const VersionTable& versions() const { return versions_; }

 private:
  // The implementer's to design.
  Options options_;
  VersionTable versions_;
  VersionNumber number_floor_ = 0;
};

}  // namespace freshet::protocol
