// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The current version of a model is the version to serve. This header has the call that makes another version current.
///
/// The current version is a pair, epoch and version. A publish advances the version (with
/// PublisherOptions::group_commit, the group's commit does). An activation advances the epoch,
/// with any version that the publisher still keeps. There are three kinds of activations: a rollback to an older
/// version, the release of a hold, and the commit of a version that a group of subscribers has staged. Pairs only grow.
/// While a hold is set, the publisher keeps new versions and nobody serves them.

#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>

#include "core/base/clock.h"
#include "core/base/result.h"
#include "core/model/ids.h"
#include "transport/security.h"

namespace freshet {

/// Ordered by epoch, then by version; a publisher's pair only grows.
struct CurrentVersion {
  std::uint64_t epoch = 0;
  VersionNumber version = 0;  ///< 0: none yet.
  bool hold = false;
  bool operator==(const CurrentVersion&) const = default;
  bool comes_after(std::uint64_t other_epoch, VersionNumber other) const {
    return epoch != other_epoch ? epoch > other_epoch : version > other;
  }
};

struct ActivationRequest {
  VersionNumber version = 0;  ///< 0: the newest.
  bool hold = false;          ///< True: no publish becomes current until a release.
  /// True: first every member of the group stages the version. Then it becomes current for all of them at once, or for
  /// none.
  bool as_group = false;
  /// The publisher refuses the request unless this epoch is current (PublisherStat::current). Not set: any epoch.
  std::optional<std::uint64_t> expected_epoch;
  /// The longest time for members to stage the version, and for the directory to answer. An hour at most.
  Duration within = std::chrono::seconds(5);
};

struct ActivationReport {
  CurrentVersion current;     ///< As of the answer.
  std::uint32_t members = 0;  ///< Members that had staged the version.
  /// The time from the first follower known to serve the version until the last one (of a group: the members). 0: not
  /// known, or there was only one.
  Duration mixed{};
  /// Followers that did not serve the version yet when the answer came, at once or some seconds after the decision.
  /// Followers behind relays count too, and silent followers (of a group: not). Living ones will serve it later.
  std::uint32_t behind = 0;
};

struct ActivationTarget {
  std::string model;
  std::string at;         ///< Address of the publisher's control socket; empty: ask the directory.
  std::string directory;  ///< Empty for the default.
  SecurityOptions security;
};

/// Asks the publisher of a model to make another version current, and waits for the outcome. Without keys,
/// every admitted subscriber may ask. Over a network with keys, only operators of the allow-list may. Any thread.
///
/// Errors:
///   failed_precondition: this key is no operator's, or another epoch is current.
///   corrupt, invalid_argument, not_found, unsupported: a member could not stage the version (the code is the
///     member's; the message names the member and the reason).
///   not_found: nobody publishes the model, or the publisher does not keep the version (the message names the versions
///     that it keeps).
///   timed_out: a member was too slow, and nobody serves the version; or the publisher did not answer.
///   unavailable: another activation is under way; or the directory does not answer, and the activation may still
///     happen.
///   cancelled: a stop was asked for, and the activation may still happen; or another request took its place.
Result<ActivationReport> ask_activate(const ActivationTarget& target, const ActivationRequest& request,
                                      const std::stop_token& stop = {});

}  // namespace freshet
