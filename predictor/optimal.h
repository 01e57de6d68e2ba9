// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The schedule with the smallest cumulative loss that there is, for losses that are taken as known: predicted ones for
/// the policy `optimal`, the true ones for the oracle. CUMULATIVE_LOSS.md has the recursion, its proof and its cost.
///
/// Exact means: no list of rows has a smaller sum, up to the rounding of doubles (about 1e-13 of it). Work is at most
/// rows times publishes, mostly far less; memory stays at about 100 MB for 50,000 rows.

#include <cstdint>
#include <span>

#include "core/base/result.h"
#include "predictor/cumulative_loss.h"
#include "predictor/timing.h"

namespace freshet {

/// Where a plan begins. By default with the replay: after the warm-up, nothing published.
struct PlanStart {
  std::int64_t row =
      0;  ///< The last row that is over; 0 stands for the warm-up's last. Publishes come after later rows.
  std::int64_t published = 0;  ///< How many publishes stalled the trainer between the warm-up's end and now.
};

struct OptimalSchedule {
  PublishRows rows;
  /// False when the search was cut off at `work_max`: then the list is the best that was found, as quick_schedule() has
  /// it or better.
  bool exact = true;
  std::int64_t work = 0;  ///< Pairs (row, number of publish) that were weighed.
};

/// Pairs weighed at most: some ten seconds of a processor.
inline constexpr std::int64_t kOptimalWorkMax = 2'000'000'000;

/// `costs[0]` is the cost of the version that was published last (or that the server holds), `costs[j]` that of row
/// start.row + j, up to the last row. invalid_argument when the start is out of place, or costs has another length or
/// something that is not finite.
Result<OptimalSchedule> optimal_schedule(const ReplayClock& clock, std::span<const double> costs, PlanStart start = {},
                                         std::int64_t work_max = kOptimalWorkMax);

/// In time proportional to the rows: optimal if requests were a continuous stream. Where the requests do not end before
/// the training does, its sum is above the optimum's by less than one request's share: costs[0] less the lowest cost.
Result<PublishRows> quick_schedule(const ReplayClock& clock, std::span<const double> costs, PlanStart start = {});

}  // namespace freshet
