// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Viper's schedules, and those that need no prediction, as lists of rows. The best list of all is in optimal.h.
///
/// `costs`, where a function takes them, are those of rows N to L (N is the warm-up's last): predicted losses when
/// planning, true ones to find the best interval in hindsight. Pure functions, any thread. Errors: invalid_argument
/// when costs have another length or are not finite.

#include <cstdint>
#include <span>

#include "core/base/result.h"
#include "predictor/cumulative_loss.h"
#include "predictor/timing.h"

namespace freshet {

/// After rows N + k, N + 2k, … REQUIRES: interval > 0.
PublishRows every_schedule(const ReplayClock& clock, std::int64_t interval);

/// After each row of the run's epochs' ends (i mod E = 0) that comes after the warm-up. REQUIRES: epoch_steps > 0.
PublishRows epoch_schedule(const ReplayClock& clock, std::int64_t epoch_steps);

struct FixedSchedule {
  std::int64_t interval = 0;  ///< 0 where no publish at all is better than every interval.
  PublishRows rows;
};

/// The interval with the smallest cumulative loss of all from 1 to L - N (Viper, Algorithm 2); of equals the longest.
/// Looks at (L - N) log (L - N) publishes.
Result<FixedSchedule> fixed_schedule(const ReplayClock& clock, std::span<const double> costs);

/// Viper, Algorithm 3: publishes when the cost fell by more than `threshold` since the last publish, as long as a
/// version can still be served in time.
Result<PublishRows> greedy_schedule(const ReplayClock& clock, std::span<const double> costs, double threshold);

/// The threshold for it: mean plus standard deviation of how much the loss falls from one warm-up row to the next. On a
/// noisy run take the fitted curve's losses (CUMULATIVE_LOSS.md says why). Rows that are not finite are left out; 0
/// when nothing is left, or when the sum is negative.
double greedy_threshold(std::span<const double> warmup_losses);

/// The schedule if the losses allow no forecast: an interval at which stalls take about one percent of the training,
/// shortened so that there are at least 20 publishes.
FixedSchedule fallback_schedule(const ReplayClock& clock);

}  // namespace freshet
