// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Plans schedules from the losses of a warm-up. It fits a learning curve to rows 1…N. The curve's values for rows N…L
/// are the costs that it plans with. It uses no row after row N.

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

/// Plans with the weighted mean of all families. A single family more often predicts the losses better. But if its
/// curve turns flat too early (or meets the forecast's limits), the plan publishes nothing from there on. This costs
/// most. predictor/CURVES.md has the table.
inline FitOptions planning_options() { return {.combine = Combine::ensemble}; }

struct Plan {
  Forecast forecast;  ///< Of the losses times `scale`.
  /// 1, except where every loss is beyond what a curve is fitted to (LossHistory::kLargestLoss): a power of two below.
  double scale = 1;
  std::vector<double> costs;  ///< Predicted, of rows N…L.
  FixedSchedule fixed;
  double threshold = 0;  ///< Of greedy.
  PublishRows greedy;
  PublishRows optimal;
  bool exact = true;  ///< False: the search for `optimal` was cut off (optimal.h).
  /// The reason why no curve was fitted, or why a constant fits best. All three schedules are then
  /// fallback_schedule().
  std::string note;
};

/// `warmup_losses` are the losses of rows 1…N. Losses that are not finite are skipped. If no loss is left, the forecast
/// is a meaningless constant 0, and `note` says so. `work_max` is passed to optimal_schedule().
/// Errors: those of fit(); invalid_argument: there are not N losses, or the predicted sums are not finite.
Result<Plan> plan_schedules(const ReplayClock& clock, std::span<const double> warmup_losses,
                            const FitOptions& options = planning_options(), std::int64_t work_max = kOptimalWorkMax);

}  // namespace freshet
