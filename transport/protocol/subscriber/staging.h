// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The version that a subscriber stages (as a member of a group, or for a snapshot of that version): a version that is
/// fetched and proved beside the served one, and swapped in when the group (or, staged by hand, its owner) says so. The
/// subscriber machine asks it what to get, and tells it what came of it. At most one version at a time; the group's
/// candidate comes before what was asked for by hand. One thread at a time.

#include <cstdint>
#include <optional>

#include "core/base/result.h"
#include "transport/protocol/messages.h"

namespace freshet::protocol {

class Staging {
 public:
  /// A staged version, and through which session it came.
  struct Ready {
    SessionId session = 0;
    VersionNumber number = 0;
  };

  /// The publisher names this candidate, or (0) none. Returns what was staged and is not wanted any more.
  std::optional<Ready> on_candidate(VersionNumber number);
  /// Somebody in this process wants it. failed_precondition while the group stages something.
  Result<std::optional<Ready>> ask(VersionNumber number);

  /// Nobody in this process wants that version any more; another one that is staged stays. Returns what was staged.
  std::optional<Ready> forget(VersionNumber number);

  /// The version to fetch now; 0: none.
  VersionNumber wanted() const { return ready_ || failed_ ? 0 : target_; }
  void on_staged(const Ready& ready);
  void on_failed(Error why);

  const std::optional<Ready>& ready() const { return ready_; }
  bool is_by_hand() const { return by_hand_; }
  VersionNumber target() const { return target_; }
  const std::optional<Error>& failed() const { return failed_; }
  /// It is being swapped in. REQUIRES: ready().
  Ready take();

  /// The report on the candidate that news of that turn named; nothing while there is nothing to say.
  std::optional<Staged> word(SessionId session, std::uint64_t turn) const;

 private:
  std::optional<Ready> aim_at(VersionNumber number, bool by_hand);

  VersionNumber target_ = 0;
  bool by_hand_ = false;
  std::optional<Ready> ready_;   ///< Of the target.
  std::optional<Error> failed_;  ///< Why the target cannot be staged.
};

}  // namespace freshet::protocol
