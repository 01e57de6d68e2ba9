// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/plan/policies.h"

#include <utility>

#include "core/base/format.h"
#include "predictor/optimal.h"
#include "predictor/schedules.h"
#include "scheduler/schedule.h"

namespace freshet::cli {
namespace {

/// Puts schedules beside each other at one set of costs.
class Judge {
 public:
  Judge(const ReplayClock& clock, std::span<const double> costs) : clock_(clock), costs_(costs) {}

  Status add(std::string name, PublishRows rows, bool exact = true) {
    auto loss = cumulative_loss(clock_, costs_, rows);
    if (!loss) return fail(std::move(loss).error().with_context(name));
    contenders_.push_back({std::move(name), Judged{.rows = std::move(rows), .cumulative_loss = *loss, .exact = exact}});
    return {};
  }
  void leave_out(std::string name) { contenders_.push_back({.name = std::move(name)}); }

  Status add_planned(const Plan& plan, std::int64_t epoch_steps) {
    if (epoch_steps > 0) {
      FRESHET_TRY(add("epoch", epoch_schedule(clock_, epoch_steps)));
    } else {
      leave_out("epoch");
    }
    FRESHET_TRY(add("fixed", plan.fixed.rows));
    FRESHET_TRY(add("greedy", plan.greedy));
    return add("optimal", plan.optimal, plan.exact);
  }

  Contenders take() { return std::move(contenders_); }

 private:
  const ReplayClock& clock_;
  const std::span<const double> costs_;
  Contenders contenders_;
};

}  // namespace

Result<Contenders> predicted_contenders(const ReplayClock& clock, const Plan& plan, std::int64_t epoch_steps) {
  Judge judge(clock, plan.costs);
  FRESHET_TRY(judge.add_planned(plan, epoch_steps));
  judge.leave_out("online");
  judge.leave_out("oracle");
  return judge.take();
}

Result<Contenders> replayed_contenders(const ReplayClock& clock, const Plan& plan, std::int64_t epoch_steps,
                                       const LossTable& table, std::span<const double> losses) {
  const auto costs = std::span(table.costs).subspan(static_cast<std::size_t>(clock.horizon().warmup - 1));
  Judge judge(clock, costs);
  FRESHET_TRY(judge.add_planned(plan, epoch_steps));
  FRESHET_TRY(judge.add("online", publishes_of(*online_schedule(clock), clock, losses)));
  FRESHET_ASSIGN(auto oracle, optimal_schedule(clock, costs));
  FRESHET_TRY(judge.add("oracle", std::move(oracle.rows), oracle.exact));
  return judge.take();
}

}  // namespace freshet::cli
