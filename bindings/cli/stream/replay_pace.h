// SPDX-License-Identifier: Apache-2.0
#pragma once

/// When a replayed run's versions are due: as far apart as they were made, or so many times faster. A clock that went
/// back while the run was made costs no time; a pause longer than the longest that is wanted is cut to that.

#include <cstdint>
#include <optional>

#include "core/base/clock.h"

namespace freshet::cli {

/// One thread at a time.
class ReplayPace {
 public:
  struct Options {
    double speed = 1;                      ///< Positive; infinite for no waiting at all.
    Duration pause_max = Duration::max();  ///< Between two versions, as they are replayed.
  };
  ReplayPace(Options options, Time start) : options_(options), due_(start) {}

  /// When the next version is due, made at `created_unix_ns`. The first at once; each later one counts from when the
  /// one before was due, so that lateness does not add up.
  Time next(std::int64_t created_unix_ns);

 private:
  const Options options_;
  Time due_;
  std::optional<std::int64_t> last_created_ns_;
};

}  // namespace freshet::cli
