// SPDX-License-Identifier: Apache-2.0
#pragma once

/// From the losses of a warm-up to schedules: fits a learning curve to rows 1…N, takes its values for rows N…L as the
/// costs, and plans with them. No row after row N is used.

#include <span>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "predictor/cumulative_loss.h"
#include "predictor/fit.h"
#include "predictor/optimal.h"
#include "predictor/schedules.h"
#include "predictor/timing.h"

namespace freshet {

/// Plans with the weighted mean of all families. A single one is closer to the losses to come more often, but where it
/// turns flat too early (or meets the limits of what is plausible), a plan publishes nothing from there on, and that
/// costs most. docs/schedules.md has the table.
inline FitOptions planning_options() { return {.combine = Combine::ensemble}; }

struct Plan {
  Forecast forecast;
  std::vector<double> costs;  ///< Predicted, of rows N…L.
  FixedSchedule fixed;
  double threshold = 0;  ///< Of greedy.
  PublishRows greedy;
  PublishRows optimal;
  bool exact = true;  ///< False when the search for `optimal` was cut off (optimal.h).
  /// The message if no curve could be fitted, or a constant fits best; all three schedules are then
  /// fallback_schedule().
  std::string note;
};

/// `warmup_losses` are those of rows 1…N; ones that are not finite are skipped. Where none is left, the forecast is a
/// constant 0 that means nothing, and `note` says so. `work_max` is optimal_schedule()'s.
/// Errors: as fit() has them; invalid_argument when there are not N losses, or the predicted sums are not finite.
Result<Plan> plan_schedules(const ReplayClock& clock, std::span<const double> warmup_losses,
                            const FitOptions& options = planning_options(), std::int64_t work_max = kOptimalWorkMax);

}  // namespace freshet
