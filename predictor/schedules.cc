// SPDX-License-Identifier: Apache-2.0
#include "predictor/schedules.h"

#include <algorithm>
#include <cmath>

#include "core/base/check.h"
#include "core/base/format.h"

namespace freshet {
namespace {

Status check_costs(const ReplayClock& clock, std::span<const double> costs) {
  const Horizon& horizon = clock.horizon();
  if (static_cast<std::int64_t>(costs.size()) != horizon.rows - horizon.warmup + 1) {
    return fail(Code::invalid_argument,
                format("{} costs for rows {} to {}", costs.size(), horizon.warmup, horizon.rows));
  }
  for (std::size_t i = 0; i < costs.size(); ++i) {
    if (std::isfinite(costs[i])) continue;
    return fail(Code::invalid_argument,
                format("the cost of row {} is not finite", horizon.warmup + static_cast<std::int64_t>(i)));
  }
  return {};
}

PublishRows multiples(std::int64_t first, std::int64_t interval, std::int64_t last) {
  PublishRows rows;
  for (std::int64_t row = first; row <= last; row += interval) rows.push_back(row);
  return rows;
}

}  // namespace

PublishRows every_schedule(const ReplayClock& clock, std::int64_t interval) {
  FRESHET_CHECK(interval > 0);
  const Horizon& horizon = clock.horizon();
  if (interval > horizon.rows - horizon.warmup) return {};
  return multiples(horizon.warmup + interval, interval, horizon.rows);
}

PublishRows epoch_schedule(const ReplayClock& clock, std::int64_t epoch_steps) {
  FRESHET_CHECK(epoch_steps > 0);
  const Horizon& horizon = clock.horizon();
  if (epoch_steps > horizon.rows) return {};
  return multiples((horizon.warmup / epoch_steps + 1) * epoch_steps, epoch_steps, horizon.rows);
}

Result<FixedSchedule> fixed_schedule(const ReplayClock& clock, std::span<const double> costs) {
  FRESHET_TRY(check_costs(clock, costs));
  FixedSchedule best;
  FRESHET_ASSIGN(double least, cumulative_loss(clock, costs, best.rows));
  for (std::int64_t interval = clock.horizon().rows - clock.horizon().warmup; interval > 0; --interval) {
    PublishRows rows = every_schedule(clock, interval);
    FRESHET_ASSIGN(const double loss, cumulative_loss(clock, costs, rows));
    if (loss >= least) continue;
    least = loss;
    best = {.interval = interval, .rows = std::move(rows)};
  }
  return best;
}

Result<PublishRows> greedy_schedule(const ReplayClock& clock, std::span<const double> costs, double threshold) {
  FRESHET_TRY(check_costs(clock, costs));
  const Horizon& horizon = clock.horizon();
  PublishRows rows;
  double published = costs.front();
  for (std::int64_t row = horizon.warmup + 1; row <= horizon.rows; ++row) {
    const double cost = costs[static_cast<std::size_t>(row - horizon.warmup)];
    if (!(published - cost > threshold)) continue;
    const std::int64_t served = clock.served_at(row, static_cast<std::int64_t>(rows.size()) + 1);
    if (clock.requests_before(served) >= horizon.requests) break;
    rows.push_back(row);
    published = cost;
  }
  return rows;
}

double greedy_threshold(std::span<const double> warmup_losses) {
  // Welford's running mean and sum of squares.
  double mean = 0;
  double squares = 0;
  double count = 0;
  double before = NAN;
  for (const double loss : warmup_losses) {
    const double fall = before - loss;
    before = loss;
    if (!std::isfinite(fall)) continue;
    ++count;
    const double off = fall - mean;
    mean += off / count;
    squares += off * (fall - mean);
  }
  return count == 0 ? 0 : std::max(0.0, mean + std::sqrt(squares / count));
}

FixedSchedule fallback_schedule(const ReplayClock& clock) {
  constexpr std::int64_t kShareOfStalls = 100;
  constexpr std::int64_t kPublishesMin = 20;
  const std::int64_t steps = clock.horizon().rows - clock.horizon().warmup;
  const auto affordable = static_cast<__int128>(kShareOfStalls) * clock.timing().stall_ns / clock.timing().step_ns + 1;
  const std::int64_t longest = std::max<std::int64_t>(1, steps / kPublishesMin);
  const std::int64_t interval = affordable < longest ? static_cast<std::int64_t>(affordable) : longest;
  return {.interval = interval, .rows = every_schedule(clock, interval)};
}

}  // namespace freshet
