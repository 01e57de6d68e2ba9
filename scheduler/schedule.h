// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A schedule on the replay clock (predictor/timing.h), decided row by row: every:N, epoch, fixed, greedy and optimal
/// behind one seam with `online`, which decides from what it has seen so far. scheduler/scheduler.h is for a running
/// loop.

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
  /// Row `row` ended with `loss` (NaN when there is none). Called once for each row from 1 on, in order. True: publish
  /// its version now. Rows up to the warm-up's last are for learning: what is answered there is not done, and costs
  /// nothing.
  virtual bool decide(std::int64_t row, double loss) = 0;
};

/// Publishes after the given rows, whatever the losses are.
std::unique_ptr<Schedule> planned_schedule(PublishRows rows);

/// The rows after which the schedule publishes when it is shown `losses`, one for each row 1…L, as they come.
/// REQUIRES: losses.size() == clock.horizon().rows.
PublishRows publishes_of(Schedule& schedule, const ReplayClock& clock, std::span<const double> losses);

}  // namespace freshet
