// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The sessions of a publisher's subscribers, until when each is believed to be there, and the queues that the
/// publisher keeps for them.
///
/// Rules:
///   - A session belongs to the peer that said Hello, until another one says Hello for it with its door's token (its
///     connection broke and came back); it is nobody else's.
///   - A session that has been silent for `silent_after` is marked so; if its door is not open it is forgotten, one
///     that can fetch only after `lease_silence`. An `every` session that can fetch outlives its door for that long, so
///     that whoever comes back (by another channel, over a new session) finds in its queue what it had not got yet.
///   - For an `every` session, committed versions after its position are held in its queue, up to a limit, until a Want
///     says that they have come; past the limit, or when the arena needs room (shed), the oldest go and are counted in
///     the next grant's gap_before. The newest version is never shed.
/// One thread at a time.

#include <cstdint>
#include <map>
#include <string_view>
#include <vector>

#include "transport/protocol/publisher/leases.h"
#include "transport/protocol/publisher/publisher_session.h"

namespace freshet::protocol {

class PublisherSessions {
 public:
  PublisherSessions(const PublisherOptions& options, HeldVersions& versions, Leases& leases, PublisherActions& out)
      : options_(options), versions_(versions), leases_(leases), out_(out) {}

  /// The session of a Hello, claimed or new; null when it is not that peer's to claim. An error: it is refused.
  Result<const PublisherSession*> admit(const Peer& peer, Hello hello, Time now, std::string_view key);
  PublisherSession* find(const Peer& peer, SessionId id);  ///< Null: that peer has none of that name.
  std::map<SessionId, PublisherSession>& all() { return sessions_; }
  const std::map<SessionId, PublisherSession>& all() const { return sessions_; }
  /// The highest number that any has seen, as far as that is believed, or that was committed.
  VersionNumber number_floor() const { return number_floor_; }

  void on_committed(VersionNumber number);
  void on_bye(PublisherSession& session, const Bye& bye);
  bool on_door_open(SessionId id, std::uint64_t token, Time now);
  /// True: the session ended with it.
  bool on_door_closed(SessionId id);
  /// Nobody let go of what these leases hold, and they are over all the same.
  void end_leases(const std::vector<LeaseId>& leases, bool by_force);
  /// Gives up versions that nothing but queues keeps, oldest first, until so many bytes were freed. Returns how many.
  std::uint64_t shed(std::uint64_t bytes_wanted, bool silent_ones_only);

  void tick(Time now);
  Time next_tick() const;

 private:
  void see_number(VersionNumber number);
  std::uint32_t common_channels(const Hello& hello) const;
  Status check(const Hello& hello, std::size_t replaced, std::string_view key) const;
  const PublisherSession& open(const Peer& peer, Hello hello, Time now, std::string_view key);
  std::vector<SessionId> doorless_of(const Peer& peer) const;
  void end(SessionId id);
  /// How long the session may be silent until its leases, and itself if it has no door, are over; max: for ever.
  Duration patience(const PublisherSession& session) const;
  void expire(SessionId id);
  bool kept_by_queues_alone(VersionNumber number, bool silent_ones_only) const;

  const PublisherOptions& options_;
  HeldVersions& versions_;
  Leases& leases_;
  PublisherActions& out_;
  std::map<SessionId, PublisherSession> sessions_;
  VersionNumber number_floor_ = 0;
};

}  // namespace freshet::protocol
