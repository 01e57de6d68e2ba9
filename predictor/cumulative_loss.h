// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What a schedule costs: the sum, over all requests, of the loss of the version that answers it (Viper, section 4.3:
/// CIL).

#include <cstdint>
#include <span>
#include <vector>

#include "core/base/result.h"
#include "predictor/timing.h"

namespace freshet {

/// Rows after which to publish, growing, each after the warm-up and at most the last one.
using PublishRows = std::vector<std::int64_t>;

/// `costs` has an entry for row N (the version held at time 0), N + 1, … L: rows - warmup + 1 of them. The answer is
/// the double nearest to the exact sum (predictor/exact_sum.h). invalid_argument when a row is out of place, when costs
/// has another length, or when the sum is not finite.
Result<double> cumulative_loss(const ReplayClock& clock, std::span<const double> costs,
                               std::span<const std::int64_t> rows);

}  // namespace freshet
