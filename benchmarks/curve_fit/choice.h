// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Which way of choosing among families predicts best what comes later? Every run is cut after a tenth, a quarter and a
/// half of its rows; each way sees what is before the cut and says what follows. Its error is the mean distance from
/// the trend (the centred mean over 51 rows) of what follows, in units of the error of "it stays as it is": under 1 is
/// better than no prediction. The band's share is how much of that trend lies within the 90 % band, whose width is told
/// too. The last quantity is what predictions are for: the cumulative loss of the schedule that is best for the
/// prediction, over that of the best schedule there is, both judged by the trend of the held-out loss; with publishes
/// that stall for half a step (cheap) and for fifty steps (dear).

#include <vector>

#include "benchmarks/common/report.h"
#include "benchmarks/curve_fit/cases.h"
#include "core/base/result.h"

namespace freshet::benchmarks {

Status compare_choices(const std::string& title, const std::vector<Run>& runs, bool details, Report& report);

}  // namespace freshet::benchmarks
