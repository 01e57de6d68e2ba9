// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The publisher's half of the control protocol, for one model: sessions, holds, queues, heartbeats, and which segments
/// may be written again. Handed events and a time, returns actions; opens no socket, reads no clock, starts no thread.
/// Owned by its loop thread (or by the simulator).
///
/// Rules:
///   - A version is granted to be mapped only to a session whose door is open, and the grant is a hold that ends with a
///     Held message that leaves it out, with Bye, or with the closing of the door: never with a timer. (A stopped
///     reader keeps its door.)
///   - A Want that names another channel than shm needs no door. Its Grant carries a lease, and no places. The lease
///   ends
///     with Held, Bye, or `lease_silence` without a word from its session. Then no fetch is begun under it any more,
///     and the hold goes when the shell says that nothing of it is read (on_lease_closed), not before.
///   - What all sessions share, one cannot use up. A session has at most `leases_per_session_max` leases, and the
///     sessions of one key have leases on at most `leased_versions_per_key_max` versions: a Want beyond that is refused
///     with the limit's name. A lease under which nothing was fetched for `lease_idle` ends. When room is needed
///     (shed_queues), so does one of an older version by which nothing came within `lease_silence`, or less than
///     `fetch_rate_min` all in all. That is counted by what was sent, and never of mapped holds.
///   - A version is held before the Grant that names it is handed out as an action, so that no segment of it can
///     become free on the way.
///   - A session belongs to the peer that said Hello, until another one says Hello for it with its door's token (its
///     connection broke and came back); messages that name it from elsewhere are answered UnknownSession.
///   - A session that has been silent for `silent_after` is marked so; if its door is not open it is forgotten, one
///   that
///     can fetch only after `lease_silence`. An `every` session that can fetch outlives its door for that long, so that
///     whoever comes back (by another channel, over a new session) finds in its queue what it had not got yet.
///   - For an `every` session, committed versions after its position are held in its queue, up to a limit, until a Want
///     says that they have come; past the limit, or when the arena needs room (shed_queues), the oldest go and are
///     counted in the next grant's gap_before. The newest version is never shed.
///   - The last `retained_versions` are kept though nobody holds them; shed_queues takes them before any queue.
///   - A relay says which version it is fetching (on_coming). A `latest` session that fetches is granted it at once, if
///     it is what is current: what it fetches comes to it as it comes here, and it proves it itself. Nobody maps it, no
///     queue has it and no gap is counted before it is committed. When it is not coming any more its leases are closed,
///     and those who fetched ask again.
///   - Numbers need only grow: a relay commits what its upstream numbered, and says what it missed itself.
///   - A version is granted to a session by one channel at most once in `grant_again`: who asks more often (whose
///     subscriber never does) is not answered, since each grant carries a whole manifest.
///   - The shell answers StatRequest itself; the machine passes over it.
///   - What a `latest` session is granted is the current version, not the newest (activation.h). The current version,
///     and one that is about to become it, are never shed.
///   - A Want that waits is kept, one for each session, and granted in the same moment in which another version becomes
///     current, before the news of it go out. A session that is silent is not granted anything that way: it may be
///     stopped, and would hold what it does not read.
///
/// The parts: Activation (what is current), HeldVersions (what is kept), PublisherSession (whose it is), Leases (what
/// is fetched), CommitLog (what was missed).

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/arena/arena.h"
#include "core/base/clock.h"
#include "transport/protocol/messages.h"
#include "transport/protocol/publisher/activation.h"
#include "transport/protocol/publisher/commit_log.h"
#include "transport/protocol/publisher/held_versions.h"
#include "transport/protocol/publisher/leases.h"
#include "transport/protocol/publisher/publisher_session.h"

namespace freshet::protocol {

namespace action {
struct Send {
  Peer peer;
  Message message;
};
/// To these, who said Hello and are not silent: one that is silent may be stopped, and hears with its next Pong.
struct Announce {
  Announcement announcement;
  std::vector<Peer> peers;
};
/// These segments may be written again.
struct Free {
  std::vector<SegmentIndex> segments;
};
/// The session ended: its door, if still open, is to be closed.
struct CloseDoor {
  SessionId session = 0;
};
/// From now on that session may fetch that version under this lease. Comes before the Grant that names it is sent.
struct OpenLease {
  LeaseId lease = 0;
  SessionId session = 0;
  VersionNumber number = 0;
  bool coming = false;  ///< Of the version that is coming (on_coming).
};
/// No fetch is to be begun under it any more; answered with on_lease_closed once nothing of it is read. `by_force`: the
/// session is gone, so that whoever still fetches for it is to be cut off; may follow one without force.
struct CloseLease {
  LeaseId lease = 0;
  SessionId session = 0;
  bool by_force = false;
};
/// To be asked of the directory; answered with on_current_swapped. One at a time.
struct SwapCurrent {
  Current expected;
  Current desired;
};
}  // namespace action
using PublisherAction = std::variant<action::Send, action::Announce, action::Free, action::CloseDoor, action::OpenLease,
                                     action::CloseLease, action::SwapCurrent>;

class PublisherMachine {
 public:
  struct Options {
    std::string model;
    RunId run;
    std::uint64_t incarnation = 0;
    VersionNumber first_number = 0;  ///< As Welcome has it.
    std::string door;
    std::string host;                    ///< Sessions of the same one are offered the door.
    std::vector<ChannelOffer> channels;  ///< Where else bytes can be had; sessions of other hosts need one of them.
    std::uint64_t token_seed = 0;        ///< Secret.
    std::size_t every_queue_versions_max = 64;
    std::size_t sessions_max = 4096;
    std::size_t sessions_per_key_max = 2048;   ///< Where there are keys.
    std::size_t holds_per_session_max = 1024;  ///< A session that holds more is refused until it lets some go.
    std::size_t leases_per_session_max = 8;    ///< A subscriber fetches one version at a time.
    std::size_t leased_versions_per_key_max = 16;
    /// What a Hello says of numbers is believed up to here, and up to the newest version.
    VersionNumber believed_number_max = kNumbersBelieved;
    Duration grant_again = std::chrono::milliseconds(100);  ///< Less than subscribers wait until they repeat a Want.
    Duration silent_after = std::chrono::milliseconds(1000);
    Duration lease_silence = std::chrono::seconds(3);  ///< At least silent_after.
    Duration lease_idle = std::chrono::seconds(60);
    /// Of a lease, in bytes a second, when room is needed; after a first `fetch_grace`.
    std::uint64_t fetch_rate_min = std::uint64_t{64} << 10;
    Duration fetch_grace = std::chrono::seconds(10);
    std::size_t retained_versions = 1;  ///< The newest among them.
    Activation::Options activation;     ///< Its model is this one.
  };
  explicit PublisherMachine(Options options);

  /// A version was sealed. Becomes the newest, is announced, and is queued for `every` sessions.
  /// REQUIRES: numbered above every version before it; as many segments and places as the architecture has tensors.
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
  bool knows(SessionId session) const;

  /// The shell accepted a door connection that showed this session's token. False: unknown, close it.
  bool on_door_open(SessionId session, std::uint64_t token, Time now);
  void on_door_closed(SessionId session, Time now);

  /// The shell's answer to CloseLease: nothing is read under it any more, nor will be. May come late, after its
  /// session.
  void on_lease_closed(LeaseId lease, Time now);

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

  void on_tick(Time now);
  Time next_tick() const;  ///< When on_tick should be called at the latest.

  std::vector<PublisherAction> take_actions();

  /// The highest number that any subscriber has seen, as far as that is believed, or this publisher committed: the next
  /// version must be numbered above it.
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
    std::string host;
    std::string serves;                      ///< Its own control address, if it serves the model again.
    ChannelKind channel = ChannelKind::shm;  ///< Of its last Want.
    std::string channel_why;                 ///< As it says itself.
    bool member = false;                     ///< Of the group.
    std::uint64_t epoch = 0;
    VersionNumber staged = 0;
    std::string failed;        ///< Why it could not stage the candidate.
    std::uint32_t behind = 0;  ///< Of a relay: those behind it who do not serve what it serves.
  };
  std::vector<SessionStat> sessions() const;
  std::size_t sessions_count() const { return sessions_.size(); }
  const VersionTable& versions() const { return versions_.table(); }

 private:
  void on(const Peer& peer, Hello hello, Time now, std::string_view key);
  void on(PublisherSession& session, const Want& want, Time now);
  void on(PublisherSession& session, const Held& held, Time now);
  void on(PublisherSession& session, Ping ping, Time now);
  void on(PublisherSession& session, const Staged& staged, Time now);
  void on_bye(PublisherSession& session, const Bye& bye);
  void dispatch(const Peer& peer, Message message, Time now, std::string_view key);

  // What is current: publisher_current.cc.
  void on(const Peer& peer, const Activate& ask, Time now);
  std::vector<Activation::Follower> followers() const;
  /// Decides what can be decided about what is current, keeps it, and tells everybody. The end of every event.
  void settle(Time now);
  void announce(Time now);
  std::uint32_t membership_ms() const;

  void see_number(VersionNumber number);
  std::optional<Error> why_refused(const Hello& hello, std::size_t replaced, std::string_view key) const;
  void open_session(const Peer& peer, Hello hello, Time now, std::string_view key);
  std::vector<SessionId> doorless_sessions_of(const Peer& peer) const;
  void end_sessions(const std::vector<SessionId>& ids);
  void end_session(SessionId id);
  PublisherSession* session_of(const Peer& peer, SessionId id);

  // Leases: publisher_leases.cc.
  std::uint32_t channels_offered() const;
  bool is_on_this_host(const Hello& hello) const { return hello.host == options_.host; }
  bool can_fetch(const Hello& hello) const;
  std::optional<Error> why_not_readable(const PublisherSession& session, const Want& want) const;
  std::optional<Error> why_no_lease(const PublisherSession& session, VersionNumber number) const;
  std::uint64_t grant_by_lease(PublisherSession& session, VersionNumber number, Time now);
  bool is_too_slow(const Leases::Course& course, Time now) const;
  void end_idle_leases(Time now);
  void end_slow_leases(Time now);
  bool is_coming(VersionNumber number) const;
  /// That version is coming, and the Want can be answered with it.
  bool may_have_coming(const Want& want, VersionNumber number) const;
  /// What a grant of it is made of. REQUIRES: it is here, or coming.
  const HeldVersions::Record& record_of(VersionNumber number) const;
  void close_leases(const std::vector<LeaseId>& leases, bool by_force);
  void expire(SessionId id);
  std::uint32_t lease_ms() const;
  /// How long the session may be silent until its leases, and itself if it has no door, are over; max: for ever.
  Duration patience(const PublisherSession& session) const;

  Result<VersionNumber> next_for(PublisherSession& session, const Want& want);
  Result<VersionNumber> current_for(const Want& want) const;
  void answer(PublisherSession& session, const Want& want, Time now);
  bool is_to_wait(const PublisherSession& session, const Want& want) const;
  void answer_waiting(Time now);
  void send_grant(PublisherSession& session, const Want& want, VersionNumber number, Time now);
  void refuse(const Peer& peer, SessionId session, std::uint64_t request, Code code, std::string message);
  void welcome(const PublisherSession& session);
  void send(const Peer& peer, Message message);

  bool kept_by_queues_alone(VersionNumber number, bool silent_ones_only) const;
  std::uint64_t shed(std::uint64_t bytes_wanted, bool silent_ones_only);

  Options options_;
  HeldVersions versions_;
  std::optional<HeldVersions::Record> coming_;  ///< Not among versions_.
  CommitLog commits_;
  Activation activation_;
  std::uint64_t announced_turn_ = 1;
  Current answered_;      ///< Those who wait were answered when this was current,
  bool arrived_ = false;  ///< and a version came since, or began to.
  std::map<SessionId, PublisherSession> sessions_;
  Leases leases_;
  std::uint64_t last_serial_ = 0;
  VersionNumber number_floor_ = 0;
  std::vector<PublisherAction> actions_;
};

}  // namespace freshet::protocol
