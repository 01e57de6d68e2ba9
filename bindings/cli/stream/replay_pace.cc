// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/stream/replay_pace.h"

#include <algorithm>

namespace freshet::cli {
namespace {
/// Nobody replays a run with a longer pause; keeps the sum of all of them far from the end of time.
constexpr double kPauseNsMax = 1e18;
}  // namespace

Time ReplayPace::next(std::int64_t created_unix_ns) {
  if (last_created_ns_) {
    // As numbers that cannot overflow: both times come from a file.
    const double apart = static_cast<double>(created_unix_ns) - static_cast<double>(*last_created_ns_);
    const double pause_ns = std::clamp(apart / options_.speed, 0.0, kPauseNsMax);
    due_ += std::min(Duration(static_cast<std::int64_t>(pause_ns)), options_.pause_max);
  }
  last_created_ns_ = created_unix_ns;
  return due_;
}

}  // namespace freshet::cli
