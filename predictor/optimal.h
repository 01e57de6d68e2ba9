// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The schedule with the smallest possible cumulative loss, for given losses. The policy `optimal` calls
/// optimal_schedule() with predicted losses; the oracle calls it with the true losses. CUMULATIVE_LOSS.md has the
/// recursion, its proof and its cost.
///
/// Exact means: no list of rows has a smaller sum, up to the rounding of doubles (about 1e-13 of the sum). The work is
/// at most rows times publishes, mostly far less. 50,000 rows need about 100 MB of memory.

#include <cstdint>
#include <span>

#include "core/base/result.h"
#include "predictor/cumulative_loss.h"
#include "predictor/timing.h"

namespace freshet {

/// The begin of a plan. By default it is the begin of the replay: after the warm-up, with nothing published.
struct PlanStart {
  std::int64_t row =
      0;  ///< The last row that has ended; 0: the last row of the warm-up. Publishes come after later rows.
  std::int64_t published = 0;  ///< The number of publishes that stalled the trainer since the warm-up's end.
};

struct OptimalSchedule {
  PublishRows rows;
  /// False: the search stopped at `work_max`. The list is then the best one found, at least as good as that of
  /// quick_schedule().
  bool exact = true;
  std::int64_t work = 0;  ///< The number of weighed pairs (row, number of publish).
};

/// The most pairs that are weighed: some ten seconds of a processor.
inline constexpr std::int64_t kOptimalWorkMax = 2'000'000'000;

/// `costs[0]` is the cost of the version that was published last (or that the server holds). `costs[j]` is the cost of
/// row start.row + j, up to the last row. invalid_argument: the start is out of place, `costs` has another length, or a
/// cost, or the costs times the requests, are not finite.
Result<OptimalSchedule> optimal_schedule(const ReplayClock& clock, std::span<const double> costs, PlanStart start = {},
                                         std::int64_t work_max = kOptimalWorkMax);

/// A schedule in time proportional to the rows. It is optimal for a continuous stream of requests. If requests last
/// until the training's end, its sum exceeds the optimum by less than costs[0] - lowest cost: one request's share.
Result<PublishRows> quick_schedule(const ReplayClock& clock, std::span<const double> costs, PlanStart start = {});

}  // namespace freshet
