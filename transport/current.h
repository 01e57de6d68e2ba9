// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What is current: which version of a model is to be served, and how somebody says that it should be another one.
///
/// It is a pair, epoch and version. Publishing advances the version; an activation advances the epoch, with any version
/// that the publisher still keeps: going back to an older one (a rollback), letting go of a hold, or committing what a
/// group of subscribers has staged. Pairs only grow. While a hold is set, what is published is kept, but not served.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "core/clock.h"
#include "core/ids.h"
#include "core/result.h"
#include "transport/security.h"

namespace freshet {

struct CurrentVersion {
  std::uint64_t epoch = 0;
  VersionNumber version = 0;  ///< 0: nothing yet.
  bool hold = false;
  bool operator==(const CurrentVersion&) const = default;
};

struct ActivationRequest {
  VersionNumber version = 0;  ///< 0: the newest.
  bool hold = false;          ///< Publishes advance nothing until somebody releases it.
  /// First every member of the group stages it; then it becomes current for all of them at once, or for nobody.
  bool as_group = false;
  /// The epoch that is current now, as PublisherStat::current tells it; refused when it is not. None: whatever is.
  std::optional<std::uint64_t> expected_epoch;
  /// How long members may take to stage it, and the directory to answer. An hour at most.
  Duration within = std::chrono::seconds(5);
};

struct ActivationReport {
  CurrentVersion current;     ///< As it is now.
  std::uint32_t members = 0;  ///< That had staged it.
  /// From when the first follower (of a group, member) was known to serve it until the last was. 0: not known, or there
  /// was only one.
  Duration mixed{};
  /// Followers, those behind relays among them, who did not serve it when the answer was given, some seconds after it was
  /// decided. Those who live follow as they can.
  std::uint32_t behind = 0;
};

struct ActivationTarget {
  std::string model;
  std::string at;         ///< Address of the publisher's control socket; empty: ask the directory.
  std::string directory;  ///< Empty for the default.
  SecurityOptions security;
};

/// Asks the publisher of a model to make another version current, and waits for what came of it. Whoever is admitted as
/// a subscriber may ask; where clients come with keys over a network, only those whom the allow-list names operators.
/// Any thread.
///
/// Errors: failed_precondition (this key is no operator's; another epoch is current; a member could not stage it, the
/// message says which and why); not_found (nobody publishes the model, or it does not keep that version: the message
/// names those it keeps); timed_out (a member had not staged in time: nobody serves it; or the publisher did not
/// answer); unavailable (another activation is under way, or the directory does not answer: then it may still happen).
Result<ActivationReport> ask_activate(const ActivationTarget& target, const ActivationRequest& request);

}  // namespace freshet
