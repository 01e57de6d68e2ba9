// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A publisher's answers to Wants: a version, to be mapped or under a lease; or the reason why there is none.
///
/// Rules:
///   - A version is granted to be mapped only to a session whose door is open. It is held before the Grant that names
///     it is handed out as an action, so that no segment of it can become free on the way.
///   - Such a session that named a GPU is granted the places in that GPU's memory too, if the version has some there.
///   - A Want that names another channel than shm needs no door. Its Grant carries a lease, and no places.
///   - What all sessions share, one cannot use up. A session has at most `leases_per_session_max` leases, and the
///     sessions of one key have leases on at most `leased_versions_per_key_max` versions: a Want beyond that is refused
///     with the limit's name.
///   - Each grant carries a whole manifest, so equal grants have a pace: one in `grant_again`, and `grants_at_once`
///   more
///     that a session saves up. Grants are equal if version, channel and epoch are: who follows a decision (a rollback
///     moments after the version came) asks for another one than before. A Want beyond the pace is kept, one for each
///     session, and answered when the pace allows.
///   - What a `latest` session is granted is the current version, not the newest (activation.h).
/// One thread at a time.

#include "transport/protocol/publisher/activation.h"
#include "transport/protocol/publisher/commit_log.h"
#include "transport/protocol/publisher/publisher_sessions.h"

namespace freshet::protocol {

class Grants {
 public:
  Grants(const PublisherOptions& options, HeldVersions& versions, Leases& leases, const PublisherSessions& sessions,
         const Activation& activation, PublisherActions& out)
      : options_(options),
        versions_(versions),
        leases_(leases),
        sessions_(sessions),
        activation_(activation),
        out_(out) {}

  /// So that what a subscriber missed can be counted.
  void on_committed(VersionNumber number, std::uint64_t missed_before) { commits_.append(number, missed_before); }

  /// Sends a Grant; or keeps the Want with its session, until something else is current than it has, or until the pace
  /// of equal grants allows it. An error: it is refused.
  Status answer(PublisherSession& session, const Want& want, Time now);
  /// Which version a `latest` session is to be granted.
  Result<VersionNumber> current_for(const Want& want) const;

 private:
  Status check_readable(const PublisherSession& session, const Want& want) const;
  Status check_lease(const PublisherSession& session, VersionNumber number) const;
  bool is_to_wait(const PublisherSession& session, const Want& want) const;
  Result<VersionNumber> next_for(PublisherSession& session, const Want& want);
  std::uint64_t missed_before(VersionNumber number, const PublisherSession& session, const Want& want) const;
  /// Under which the version of a Want's Grant is current; 0: it is staged, or of an `every` session.
  std::uint64_t epoch_of(const PublisherSession& session, const Want& want) const;
  void send(PublisherSession& session, const Want& want, VersionNumber number, Time now);

  const PublisherOptions& options_;
  HeldVersions& versions_;
  Leases& leases_;
  const PublisherSessions& sessions_;
  const Activation& activation_;
  PublisherActions& out_;
  CommitLog commits_;
};

}  // namespace freshet::protocol
