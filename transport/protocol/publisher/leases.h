// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The leases that a publisher gave out: each lets one session fetch one version over a data channel. A lease is a hold
/// of its own in the versions' table, from before its Grant is sent until the shell says that nothing of it is read
/// any more; between those two it may be closing, when no fetch is begun under it any more.
///
/// Invariants:
///   1. A lease's version is in the table, held by the lease's holder, until on_closed(); but for one of a version that
///      was still coming when it was opened, which holds nothing there: its memory is kept by whoever fetches under it.
///   2. An id is never given twice, and cannot be guessed from others: it is keyed by a secret seed.
/// One thread at a time.

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <vector>

#include "core/base/clock.h"
#include "transport/protocol/publisher/actions.h"
#include "transport/protocol/publisher/held_versions.h"
#include "transport/protocol/publisher/publisher_options.h"

namespace freshet::protocol {

class Leases {
 public:
  Leases(const PublisherOptions& options, HeldVersions& versions, PublisherActions& out)
      : options_(options), versions_(versions), out_(out) {}

  /// REQUIRES: the version is here, or coming.
  LeaseId open(SessionId session, VersionNumber number, Time now);
  /// So many more bytes were fetched under it. Nothing of one that nobody knows.
  void on_fetched(LeaseId lease, std::uint64_t bytes, Time now);
  /// Tells the shell of those that this changes: that were open, or closing but not by force.
  void close(const std::vector<LeaseId>& leases, bool by_force);
  /// By force.
  void close_all_of(SessionId session) { close(of(session), /*by_force=*/true); }
  /// Nothing of it is read any more. Changes nothing of one that nobody knows, or that was not closed.
  void on_closed(LeaseId lease);

  /// Under which nothing was fetched for `lease_idle`.
  std::vector<LeaseId> idle(Time now) const;
  /// The leases of older versions that are fetched too slowly.
  std::vector<LeaseId> slow(Time now) const;
  /// The open leases of a version that was still coming when they were opened.
  std::vector<LeaseId> of_coming(VersionNumber number) const;
  /// A session's leases, with those that are closing.
  std::vector<LeaseId> of(SessionId session) const;
  SessionId session_of(LeaseId lease) const { return leases_.at(lease).session; }  ///< REQUIRES: it has not ended.
  bool name(VersionNumber number) const;
  /// Versions that open leases of these sessions hold.
  std::set<VersionNumber> versions_of(const std::function<bool(SessionId)>& is_one) const;
  Time next_tick() const;  ///< When one may be idle.

 private:
  enum class State : std::uint8_t { open, closing, closing_by_force };
  struct Lease {
    SessionId session = 0;
    VersionNumber number = 0;
    HolderId holder = 0;  ///< 0: it holds nothing.
    State state = State::open;
    Time since{};
    Time moved{};             ///< When something was last fetched under it; `since` before.
    std::uint64_t bytes = 0;  ///< Fetched, each counted as often as it was.
    bool holds_open() const { return state == State::open && holder != 0; }
  };
  bool is_too_slow(const Lease& lease, Time now) const;
  std::vector<LeaseId> those(const std::function<bool(const Lease&)>& are) const;

  const PublisherOptions& options_;
  HeldVersions& versions_;
  PublisherActions& out_;
  std::map<LeaseId, Lease> leases_;
};

/// A 64-bit word that tells nothing of the seed it was made from, never 0: door tokens and leases.
std::uint64_t keyed_word(std::uint64_t seed, std::uint64_t first, std::uint64_t second);

}  // namespace freshet::protocol
