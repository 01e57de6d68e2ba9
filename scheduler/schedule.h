// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A schedule on the replay clock (predictor/timing.h), decided row by row. `online` decides from the losses so far;
/// online/online_policy.h tells how. In a running loop, scheduler/scheduler.h has the same policy with measured times.

#include <cstdint>
#include <memory>
#include <span>

#include "predictor/cumulative_loss.h"
#include "predictor/timing.h"

namespace freshet {

/// One thread at a time.
class Schedule {
 public:
  virtual ~Schedule() = default;
  /// Row `row` ended with `loss` (NaN: no loss). Called once for each row from 1 on, in order. True: publish the row's
  /// version now. The rows of the warm-up are only for learning: their answers are ignored, and cost
  /// nothing.
  virtual bool decide(std::int64_t row, double loss) = 0;
};

/// `online`: decides after row i from the losses of rows 1…i and the clock alone.
std::unique_ptr<Schedule> online_schedule(const ReplayClock& clock);

/// The rows after which the schedule publishes, if it gets `losses` one by one: one loss for each row 1…L.
/// REQUIRES: losses.size() == clock.horizon().rows.
PublishRows publishes_of(Schedule& schedule, const ReplayClock& clock, std::span<const double> losses);

}  // namespace freshet
