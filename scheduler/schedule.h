// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A schedule on the replay clock (predictor/timing.h), decided row by row. `online` decides
/// from the losses so far. For a running loop, see scheduler/scheduler.h.

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

/// The rows after which the schedule publishes, if it gets `losses` one by one: one loss for each row 1…L.
/// REQUIRES: losses.size() == clock.horizon().rows.
PublishRows publishes_of(Schedule& schedule, const ReplayClock& clock, std::span<const double> losses);

}  // namespace freshet
