// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The publisher's half of the control protocol, for one model: sessions, holds, queues, heartbeats, and which segments
/// may be written again. Handed events and a time, returns actions; opens no socket, reads no clock, starts no thread.
/// Owned by its loop thread (or by the simulator).
///
/// Rules, beside those of its parts:
///   - A version that was granted to be mapped is held until a Held message leaves it out, Bye, or the closing of the
///     door: never to a timer. (A stopped reader keeps its door.)
///   - A lease ends with Held, Bye, or `lease_silence` without a word from its session. Then no fetch is begun under it
///     any more, and the hold goes when the shell says that nothing of it is read (on_lease_closed), not before.
///   - A lease under which nothing was fetched for `lease_idle` ends. When room is needed (shed_queues), so does one of
///     an older version by which nothing came within `lease_silence`, or less than `fetch_rate_min` all in all. That is
///     counted by what was sent, and never of mapped holds.
///   - Messages that name a session from elsewhere than its peer are answered UnknownSession.
///   - The last `retained_versions` are kept though nobody holds them; shed_queues takes them before any queue.
///   - A relay says which version it is fetching (on_coming). A `latest` session that fetches is granted it at once, if
///     it is what is current: what it fetches comes to it as it comes here, and it proves it itself. Nobody maps it, no
///     queue has it and no gap is counted before it is committed. When it is not coming any more its leases are closed,
///     and those who fetched ask again.
///   - Numbers need only grow: a relay commits what its upstream numbered, and says what it missed itself.
///   - The shell answers StatRequest itself; the machine passes over it.
///   - The current version, and one that is about to become it, are never shed.
///   - A Want that waits is kept, one for each session, and granted in the same moment in which another version becomes
///     current, before the news of it go out. A session that is silent is not granted anything that way: it may be
///     stopped, and would hold what it does not read.
///   - A Want tells what its session serves. So a publisher knows without a Ping that a version has come.
///
/// The parts: Activation (what is current), HeldVersions (what is kept), PublisherSessions (who is there), Leases (what
/// is fetched) and Grants (what Wants are answered with).

#include <algorithm>
#include <string_view>
#include <vector>

#include "transport/protocol/publisher/grants.h"

namespace freshet::protocol {

class PublisherMachine {
 public:
  using Options = PublisherOptions;
  explicit PublisherMachine(Options options);
  PublisherMachine(const PublisherMachine&) = delete;
  PublisherMachine& operator=(const PublisherMachine&) = delete;

  /// A version was sealed. Becomes the newest, is announced, and is queued for `every` sessions.
  /// REQUIRES: numbered above every version before it; as many places as the architecture has tensors, and a segment
  /// for each.
  using Committed = CommittedVersion;
  void on_committed(Committed version, Time now);

  /// A relay: it serves an older version again, which its upstream went back to, and has it for others. Nothing when it
  /// is here. Does not become the newest, and waits for no `every` session: each had it when it was new.
  /// REQUIRES: numbered below the newest. False when it is here already: its segments are not taken in.
  bool on_restored(CommittedVersion version, Time now);
  /// A relay: that version is being fetched, and what comes can be fetched from here meanwhile; in the place of any
  /// that was coming before. Ends with its commit, or with on_not_coming. REQUIRES: numbered above every version before
  /// it; places and segments are not looked at.
  void on_coming(CommittedVersion version, Time now);
  void on_not_coming(VersionNumber number, Time now);

  /// `key`: with which the peer proved itself; empty where there are no keys.
  void on_message(const Peer& peer, Message message, Time now, std::string_view key = {});

  /// Whether this is a session of this model: a shell that serves several models routes by it.
  bool knows(SessionId session) const { return sessions_.all().contains(session); }

  /// The shell accepted a door connection that showed this session's token. False: unknown, close it.
  bool on_door_open(SessionId session, std::uint64_t token, Time now) {
    return sessions_.on_door_open(session, token, now);
  }
  void on_door_closed(SessionId session, Time now);

  /// The shell's answer to CloseLease: nothing is read under it any more, nor will be. May come late, after its
  /// session.
  void on_lease_closed(LeaseId lease, Time /*now*/) { leases_.on_closed(lease); }

  /// So many more bytes went to whoever fetches under this lease. Nothing of a lease that is not this model's. Told
  /// before on_tick() and shed_queues() at the latest.
  void on_fetched(LeaseId lease, std::uint64_t bytes, Time now) { leases_.on_fetched(lease, bytes, now); }

  /// Gives up retained versions, then those that nothing but queues keeps, oldest first, those that only silent
  /// sessions wait for before all others, until nothing is left to give up or `bytes_wanted` bytes were freed. If they
  /// were not, ends the leases by which too little comes; their versions go a little later. Called when a capture finds
  /// no room.
  void shed_queues(std::uint64_t bytes_wanted, Time now);

  /// The answer to SwapCurrent: what the directory has now. An error that may pass says nothing about what it has.
  void on_current_swapped(Result<Current> record, Time now);
  /// The directory, or for a relay its upstream, says that this is current.
  void on_current_seen(const Current& pair, Time now);
  const Activation& activation() const { return activation_; }

  /// The publisher of the model ends. Whose door is open hears of it by that; the others are told.
  void on_removed();

  void on_tick(Time now);
  /// When on_tick should be called at the latest.
  Time next_tick() const { return std::min(activation_.next_tick(), sessions_.next_tick()); }

  std::vector<PublisherAction> take_actions();

  /// The highest number that any subscriber has seen, as far as that is believed, or this publisher committed: the next
  /// version must be numbered above it.
  VersionNumber number_floor() const { return sessions_.number_floor(); }

  std::vector<SubscriberStat> sessions() const;    ///< As they were at the last event,
  Time settled_at() const { return settled_at_; }  ///< which was then.
  std::size_t sessions_count() const { return sessions_.all().size(); }
  const VersionTable& versions() const { return versions_.table(); }

 private:
  void dispatch(const Peer& peer, Message message, Time now, std::string_view key);
  void on(const Peer& peer, Hello hello, Time now, std::string_view key);
  void on(PublisherSession& session, const Want& want, Time now);
  void on(PublisherSession& session, const Ping& ping, Time now);
  void on(PublisherSession& session, const Staged& staged, Time now);
  void answer(PublisherSession& session, const Want& want, Time now);
  void refuse(const Peer& peer, SessionId session, std::uint64_t request, const Error& why);
  void welcome(const PublisherSession& session);

  /// Decides what can be decided about what is current, keeps it, and tells everybody. The end of every event.
  void settle(Time now);
  std::vector<Activation::Follower> followers() const;
  void answer_waiting(Time now);
  void answer_postponed(Time now);
  void announce(Time now);

  const Options options_;
  PublisherActions out_;
  HeldVersions versions_{options_.retained_versions};
  Leases leases_{options_, versions_, out_};
  PublisherSessions sessions_{options_, versions_, leases_, out_};
  Activation activation_;
  Grants grants_{options_, versions_, leases_, sessions_, activation_, out_};
  VersionTimes announced_;
  Time settled_at_{};
  std::uint64_t announced_turn_ = 1;
  Current answered_;      ///< Those who wait were answered when this was current,
  bool arrived_ = false;  ///< and a version came since, or began to.
};

}  // namespace freshet::protocol
