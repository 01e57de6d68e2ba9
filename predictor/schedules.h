// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Viper's schedules, and schedules without a prediction, as lists of rows. optimal.h has the best list of all.
///
/// `costs` are the costs of rows N to L (N is the warm-up's last row): predicted losses for a plan, or true losses for
/// the best interval in hindsight. Pure functions, any thread. invalid_argument: `costs` has another length, or a cost
/// or a cumulative loss is not finite.

#include <cstdint>
#include <span>

#include "core/base/result.h"
#include "predictor/cumulative_loss.h"
#include "predictor/timing.h"

namespace freshet {

/// After rows N + k, N + 2k, … REQUIRES: interval > 0.
PublishRows every_schedule(const ReplayClock& clock, std::int64_t interval);

/// After each row after the warm-up that ends an epoch of the run (i mod E = 0). REQUIRES: epoch_steps > 0.
PublishRows epoch_schedule(const ReplayClock& clock, std::int64_t epoch_steps);

struct FixedSchedule {
  std::int64_t interval = 0;  ///< 0: no publish at all is better than every interval.
  PublishRows rows;
};

/// The interval with the smallest cumulative loss of all from 1 to L - N (Viper, Algorithm 2); of equals the longest.
/// The work is (L - N) log (L - N) publishes.
Result<FixedSchedule> fixed_schedule(const ReplayClock& clock, std::span<const double> costs);

/// Viper, Algorithm 3: publishes when the cost has fallen by more than `threshold` since the last publish, while a
/// version can still be served in time.
Result<PublishRows> greedy_schedule(const ReplayClock& clock, std::span<const double> costs, double threshold);

/// The threshold of greedy_schedule(): mean plus standard deviation of the loss's fall from one warm-up row to the
/// next. For a noisy run, pass the fitted curve's losses (CUMULATIVE_LOSS.md has the reason). Rows that are not finite
/// are left out. 0 if no row is left, or if the sum is negative.
double greedy_threshold(std::span<const double> warmup_losses);

/// The schedule if the losses allow no forecast: an interval at which stalls take about one percent of the training,
/// shortened so that there are at least 20 publishes (of fewer rows: one after each row).
FixedSchedule fallback_schedule(const ReplayClock& clock);

}  // namespace freshet
