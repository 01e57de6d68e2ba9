// SPDX-License-Identifier: Apache-2.0
#pragma once

/// `online` as a schedule on the replay clock, where every time is known. online/online_policy.h tells how it decides;
/// scheduler/scheduler.h is the same policy in a running loop, with measured times.

#include <memory>

#include "predictor/timing.h"
#include "scheduler/schedule.h"

namespace freshet {

/// Decides after row i from the losses of rows 1…i and the clock alone.
std::unique_ptr<Schedule> online_schedule(const ReplayClock& clock);

}  // namespace freshet
