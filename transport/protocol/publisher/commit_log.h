// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Which version numbers an incarnation gave to committed versions, so that a gap can be counted exactly: numbers may
/// jump (a capture that was given up, a subscriber that had seen higher ones). Kept as runs of consecutive numbers, so
/// that a long life costs a few bytes. Immutable values in; one thread at a time.

#include <cstdint>
#include <vector>

#include "core/model/ids.h"

namespace freshet::protocol {

class CommitLog {
 public:
  /// `missed` versions lie between the one appended before and this one that were committed upstream and never came
  /// here (a relay's gaps); more than there are numbers is taken as all of them. REQUIRES: greater than every number
  /// before.
  void append(VersionNumber number, std::uint64_t missed = 0);

  /// How many versions were committed with a number up to `number`.
  std::uint64_t count_up_to(VersionNumber number) const;

  /// How many versions somebody who has everything up to `after` misses when `next` comes: those committed in between,
  /// those that this publisher itself missed, and, when `after` is older than this incarnation, every number between it
  /// and the incarnation's first. 0 when `after` is 0. `next` need not be in the log: a relay restores versions that
  /// it never committed. REQUIRES: something was committed, and after < next.
  std::uint64_t missed_between(VersionNumber after, VersionNumber next) const;
  /// How many somebody misses who is owed all of this incarnation when `next` is the first that comes.
  std::uint64_t missed_from_start(VersionNumber next) const;

 private:
  struct Run {
    VersionNumber first = 0;
    std::uint64_t length = 0;
    std::uint64_t before = 0;        ///< Versions committed in earlier runs.
    std::uint64_t missed = 0;        ///< Between the run before and this one.
    std::uint64_t missed_up_to = 0;  ///< The sum of those, this run's included.
  };
  std::uint64_t missed_in(VersionNumber after, VersionNumber next) const;

  std::vector<Run> runs_;
};

}  // namespace freshet::protocol
