// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The holds of a subscriber's process through the doors of its sessions: of the present session, and of those that
/// were given up and are drained. LeaveDoor comes with a drained session's last drop(). One thread at a time.

#include <cstdint>
#include <map>
#include <optional>

#include "transport/protocol/subscriber/actions.h"

namespace freshet::protocol {

class Sessions {
 public:
  /// `seed`: sessions are derived from it.
  Sessions(std::uint64_t seed, SubscriberActions& out) : seed_(seed), out_(out) {}

  SessionId current() const { return current_; }
  void begin_next();
  /// The current one is given up. `knocked`: at its door, at least.
  void leave(bool knocked);
  /// Says Bye for each.
  void end();

  void on_door_open(std::uint64_t token);                         ///< The current session's.
  void on_door_lost() { sessions_[current_].door_open = false; }  ///< The current session goes on without it.
  bool has_door(SessionId id) const;
  void forget(SessionId id) { sessions_.erase(id); }
  /// The token of a drained session that the publisher does not know: it stayed with a broken connection, and is taken
  /// along, so that what it lets go of is heard. Once for each heartbeat, since a publisher that never heard of it says
  /// so again.
  std::optional<std::uint64_t> claim_drained(SessionId id);

  /// False for one that is nobody's, or that a later one has overtaken.
  bool take_grant(const Grant& grant);
  void hold(SessionId id, VersionNumber number) { ++sessions_[id].held[number]; }
  void drop(SessionId id, VersionNumber number);
  /// Its Install is not to be finished.
  void abandon(SessionId id, VersionNumber number);
  void tell_held(SessionId id);
  /// Repeated without need most of the time: one that was lost would leave versions held for nobody.
  void repeat_held();

 private:
  /// A version that is installed again while an earlier installation of it is still read (one that was gone back to) is
  /// held twice.
  struct Session {
    bool door_open = false;
    std::uint64_t grants_seen = 0;
    std::map<VersionNumber, std::uint32_t> held;  ///< To how many times.
    std::uint64_t door_token = 0;                 ///< Set when the door opens.
    bool claimed = false;                         ///< Since the last heartbeat; of a drained session.
  };

  const std::uint64_t seed_;
  SubscriberActions& out_;
  std::uint64_t made_ = 0;
  SessionId current_ = 0;
  std::map<SessionId, Session> sessions_;
};

}  // namespace freshet::protocol
