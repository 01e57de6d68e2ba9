// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/schedules/contenders.h"

#include <span>

#include "predictor/optimal.h"
#include "predictor/plan.h"
#include "scheduler/schedule.h"

namespace freshet::benchmarks {

Result<std::map<std::string, Outcome>> play(const Case& played) {
  const auto warmup = static_cast<std::size_t>(played.clock.horizon().warmup);
  const std::span<const double> costs = std::span(played.trend).subspan(warmup - 1);
  std::map<std::string, Outcome> outcomes;
  const auto add = [&](const char* name, PublishRows rows) -> Status {
    FRESHET_ASSIGN(const double loss, cumulative_loss(played.clock, costs, rows));
    outcomes[name] = {.loss = loss, .rows = std::move(rows)};
    return {};
  };
  FRESHET_ASSIGN(OptimalSchedule oracle, optimal_schedule(played.clock, costs));
  FRESHET_ASSIGN(FixedSchedule best_every, fixed_schedule(played.clock, costs));
  FRESHET_ASSIGN(Plan plan, plan_schedules(played.clock, std::span(played.loss).first(warmup)));
  FRESHET_TRY(add(kOracle, std::move(oracle.rows)));
  FRESHET_TRY(add(kEpoch, epoch_schedule(played.clock, played.epoch_rows)));
  FRESHET_TRY(add(kBestEvery, std::move(best_every.rows)));
  FRESHET_TRY(add(kFixed, std::move(plan.fixed.rows)));
  FRESHET_TRY(add(kGreedy, std::move(plan.greedy)));
  FRESHET_TRY(add(kOptimal, std::move(plan.optimal)));
  const std::unique_ptr<Schedule> online = online_schedule(played.clock);
  FRESHET_TRY(add(kOnline, publishes_of(*online, played.clock, played.loss)));
  return outcomes;
}

}  // namespace freshet::benchmarks
