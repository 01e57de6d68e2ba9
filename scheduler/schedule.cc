// SPDX-License-Identifier: Apache-2.0
#include "scheduler/schedule.h"

#include "core/base/check.h"

namespace freshet {

PublishRows publishes_of(Schedule& schedule, const ReplayClock& clock, std::span<const double> losses) {
  const Horizon& horizon = clock.horizon();
  FRESHET_CHECK(static_cast<std::int64_t>(losses.size()) == horizon.rows);
  PublishRows rows;
  for (std::int64_t row = 1; row <= horizon.rows; ++row) {
    if (schedule.decide(row, losses[static_cast<std::size_t>(row - 1)]) && row > horizon.warmup) rows.push_back(row);
  }
  return rows;
}

}  // namespace freshet
