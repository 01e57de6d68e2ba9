// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The leases that a publisher gave out: each lets one session fetch one version over a data channel. A lease is a hold
/// of its own in the versions' table, from before its Grant is sent until the shell says that nothing of it is read
/// any more; between those two it may be closing, when no fetch is begun under it any more.
///
/// Invariants:
///   1. A lease's version is in the table, held by the lease's holder, until end(); but for one of a version that was
///      still coming when it was opened, which holds nothing there: its memory is kept by whoever fetches under it.
///   2. An id is never given twice, and cannot be guessed from others: it is keyed by a secret seed.
/// One thread at a time.

#include <cstdint>
#include <map>
#include <vector>

#include "core/base/clock.h"
#include "transport/protocol/messages.h"
#include "transport/protocol/publisher/held_versions.h"

namespace freshet::protocol {

class Leases {
 public:
  explicit Leases(std::uint64_t seed) : seed_(seed) {}

  /// `holder` holds nothing else, now or later. REQUIRES: the version is in `versions`.
  LeaseId open(SessionId session, VersionNumber number, HolderId holder, HeldVersions& versions, Time now);

  /// Of a version that is not in the table yet. `serial` is no other lease's holder.
  LeaseId open_coming(SessionId session, VersionNumber number, HolderId serial, Time now);

  /// So many more bytes were fetched under it. Nothing of one that nobody knows.
  void on_fetched(LeaseId lease, std::uint64_t bytes, Time now);
  /// What an open lease that holds its version came to.
  struct Course {
    LeaseId lease = 0;
    SessionId session = 0;
    VersionNumber number = 0;
    Time since{};             ///< Opened.
    Time moved{};             ///< When something was last fetched under it; `since` before.
    std::uint64_t bytes = 0;  ///< Fetched, each counted as often as it was.
  };
  /// By number, the oldest first.
  std::vector<Course> courses() const;

  /// True when this changed something, so that the shell has to be told: it was open, or closing but not by force.
  bool close(LeaseId lease, bool by_force);

  /// Nothing of it is read any more. False for one that nobody knows, or that was not closed.
  bool end(LeaseId lease, HeldVersions& versions);

  /// Those of a version that was still coming when they were opened, and are open.
  std::vector<LeaseId> of_coming(VersionNumber number) const;
  /// Of a session, those that are closing too.
  std::vector<LeaseId> of(SessionId session) const;
  SessionId session_of(LeaseId lease) const;  ///< REQUIRES: it has not ended.
  bool name(VersionNumber number) const;
  std::size_t size() const { return leases_.size(); }

 private:
  enum class State : std::uint8_t { open, closing, closing_by_force };
  struct Lease {
    SessionId session = 0;
    VersionNumber number = 0;
    HolderId holder = 0;  ///< 0: it holds nothing.
    State state = State::open;
    Time since{};
    Time moved{};
    std::uint64_t bytes = 0;
  };

  std::uint64_t seed_;
  std::map<LeaseId, Lease> leases_;
};

/// A 64-bit word that tells nothing of the seed it was made from, never 0: door tokens and leases.
std::uint64_t keyed_word(std::uint64_t seed, std::uint64_t first, std::uint64_t second);

}  // namespace freshet::protocol
