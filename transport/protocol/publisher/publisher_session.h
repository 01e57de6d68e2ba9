// SPDX-License-Identifier: Apache-2.0
#pragma once

/// One subscriber's session, as the publisher keeps it: whom it belongs to, whether its door is open, what it holds,
/// and for `every` which versions wait for it.
///
/// Invariants:
///   1. A number is in holds_ if and only if it was granted and not let go since. If it was granted to be mapped, the
///      versions' table has it held by this session's grant holder; if to be fetched, by its lease's (leases.h). What
///      is in queue_ is held by the queue holder.
///   2. Grant ids grow by one with each grant; a hold carries the id of the latest grant of its version.
///   3. end() leaves nothing held but by leases.
/// One thread at a time. Must be ended before it is destroyed.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "transport/protocol/messages.h"
#include "transport/protocol/publisher/actions.h"
#include "transport/protocol/publisher/grant_pace.h"
#include "transport/protocol/publisher/held_versions.h"
#include "transport/protocol/version_times.h"
#include "transport/publisher.h"

namespace freshet::protocol {

class PublisherSession {
 public:
  /// `holder` as HeldVersions::next_holder() gives it. `common`: the channels by which it can fetch, a bit each.
  PublisherSession(Peer peer, Hello hello, std::uint32_t common, HolderId holder, std::uint64_t token,
                   std::string_view key);

  const Peer& peer() const { return peer_; }
  void move_to(Peer peer) { peer_ = std::move(peer); }
  const Hello& hello() const { return hello_; }
  /// Another Hello of the session named that GPU.
  void take_device(std::string device) { hello_.device = std::move(device); }
  std::uint64_t token() const { return token_; }
  const std::string& key() const { return key_; }  ///< Whose it is; empty where there are no keys.
  bool can_fetch(ChannelKind by) const { return (common_channels_ & bit(by)) != 0; }
  bool can_fetch() const { return common_channels_ != 0; }  ///< It needs no door.

  bool door_open = false;
  bool has_left = false;                   ///< It wants nothing more, and reads what it holds until the door closes.
  ChannelKind channel = ChannelKind::shm;  ///< Of its last Want; cuda_ipc where it mapped device memory last.
  std::optional<Want> waiting;             ///< Answered when something else is current than it has.
  struct Postponed {
    Want want;
    Time until{};
  };
  std::optional<Postponed> postponed;  ///< Came sooner after an equal one than the pace of grants allows.
  GrantPace pace;
  std::string channel_why;  ///< By its own word.
  Time last_heard{};
  bool silent = false;
  void hear(Time now);
  VersionNumber serving = 0;
  // What it says as a follower of what is current, and as a member of the group.
  bool has_pinged = false;
  std::uint64_t epoch = 0;
  VersionNumber staged = 0;
  std::uint32_t behind = 0;  ///< Of a relay: those behind it that do not serve what it serves.
  Staleness staleness;       ///< Of what it serves.
  /// Takes its word on a candidate.
  void hear(const Staged& staged);
  const std::optional<Staged>& word() const { return word_; }  ///< The last one.

  /// False for a request older than one that was seen: it was overtaken.
  bool accept_request(std::uint64_t request);

  /// Holds the version, to be mapped, and names the grant that says so. REQUIRES: the version is in `versions`.
  std::uint64_t grant(VersionNumber number, HeldVersions& versions);
  /// The same, to be fetched under that lease, which holds it.
  std::uint64_t grant(VersionNumber number, LeaseId lease);
  LeaseId lease_of(VersionNumber number) const;  ///< 0: none.
  /// Notes that this lease is over, though nobody let go of it.
  void drop_lease(LeaseId lease);
  bool has_leases() const;
  /// Releases what the message leaves out, among the grants that its sender has seen. Returns the leases of those.
  std::vector<LeaseId> apply(const Held& held, HeldVersions& versions);
  /// The door closed: what was granted to be mapped is not read any more.
  void release_mapped(HeldVersions& versions);
  /// Forgets what was granted to be fetched. The leases themselves are to be closed.
  void drop_leases();
  bool holds(VersionNumber number) const { return holds_.contains(number); }
  std::vector<VersionNumber> held() const;
  std::size_t holds_count() const { return holds_.size(); }

  /// Puts a version into the queue, unless it is numbered below what has come (a publisher that lost its directory
  /// begins there); past `queue_max`, the oldest that was never granted goes.
  void enqueue(VersionNumber number, HeldVersions& versions, std::size_t queue_max);
  /// Everything up to `after` has come: it need not wait any more.
  void acknowledge(VersionNumber after, HeldVersions& versions);
  std::optional<VersionNumber> first_queued() const;
  /// Gives up a queued version and counts it. Returns the bytes that became free. REQUIRES: it is queued.
  std::uint64_t give_up(VersionNumber number, HeldVersions& versions);
  const std::set<VersionNumber>& queue() const { return queue_; }
  std::uint64_t gaps() const { return gaps_; }
  /// The first version that was committed in the session's time, 0: none yet. A subscriber that has taken nothing
  /// misses what gave way from there on.
  VersionNumber first_owed() const { return first_owed_; }
  void owe(VersionNumber number) { first_owed_ = first_owed_ == 0 ? number : first_owed_; }

  void end(HeldVersions& versions);
  /// Nothing but what was granted to be mapped stays held. The leases themselves are to be closed.
  void leave(HeldVersions& versions);

  SubscriberStat stat(Time now) const;

 private:
  HolderId grant_holder() const { return holder_; }
  HolderId queue_holder() const { return holder_ + 1; }

  Peer peer_;
  // Constant after construction.
  Hello hello_;  ///< But its device.
  std::uint32_t common_channels_;
  HolderId holder_;
  std::uint64_t token_;
  std::string key_;

  std::uint64_t last_request_ = 0;
  std::uint64_t last_grant_ = 0;
  struct Hold {
    std::uint64_t grant = 0;  ///< The latest.
    bool mapped = false;      ///< Granted to be mapped, and so held by the grant holder.
    LeaseId lease = 0;        ///< Granted to be fetched.
  };
  std::map<VersionNumber, Hold> holds_;
  VersionNumber acknowledged_;  ///< Everything up to it has come, or was seen before.
  std::set<VersionNumber> queue_;
  std::uint64_t gaps_ = 0;
  std::optional<Staged> word_;
  std::uint64_t failures_ = 0;
  VersionNumber first_owed_ = 0;
};

}  // namespace freshet::protocol
