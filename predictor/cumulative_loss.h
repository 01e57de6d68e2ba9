// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The cost of a schedule. Each request is answered by a version, and costs this version's loss. The cost of the
/// schedule is the sum over all requests (Viper, section 4.3: CIL).

#include <cstdint>
#include <span>
#include <vector>

#include "core/base/result.h"
#include "predictor/timing.h"

namespace freshet {

/// Rows after which to publish, growing, each after the warm-up and at most the last one.
using PublishRows = std::vector<std::int64_t>;

/// `costs` has an entry for each of the rows N (the version held at time 0), N + 1, … L: rows - warmup + 1 entries. The
/// result is the double nearest to the exact sum (predictor/exact_sum.h). invalid_argument: a row is out of place,
/// `costs` has another length, or the sum is not finite.
Result<double> cumulative_loss(const ReplayClock& clock, std::span<const double> costs,
                               std::span<const std::int64_t> rows);

}  // namespace freshet
