// SPDX-License-Identifier: Apache-2.0
#include "predictor/cumulative_loss.h"

#include <cmath>

#include "core/base/format.h"
#include "predictor/exact_sum.h"

namespace freshet {

Result<double> cumulative_loss(const ReplayClock& clock, std::span<const double> costs,
                               std::span<const std::int64_t> rows) {
  const Horizon& horizon = clock.horizon();
  if (static_cast<std::int64_t>(costs.size()) != horizon.rows - horizon.warmup + 1) {
    return fail(Code::invalid_argument,
                format("{} costs were given for rows {} to {}", costs.size(), horizon.warmup, horizon.rows));
  }
  ExactSum sum;
  std::int64_t served = horizon.warmup;
  std::int64_t answered = 0;
  std::int64_t published = 0;
  for (const std::int64_t row : rows) {
    if (row <= served || row > horizon.rows) {
      return fail(Code::invalid_argument,
                  format("publish after row {}: must be after row {} and at most {}", row, served, horizon.rows));
    }
    const std::int64_t until = clock.requests_before(clock.served_at(row, ++published));
    sum.add_times(costs[static_cast<std::size_t>(served - horizon.warmup)], until - answered);
    answered = until;
    served = row;
  }
  sum.add_times(costs[static_cast<std::size_t>(served - horizon.warmup)], horizon.requests - answered);
  const double total = sum.value();
  if (!std::isfinite(total)) return fail(Code::invalid_argument, "the cumulative loss is not finite");
  return total;
}

}  // namespace freshet
