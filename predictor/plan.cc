// SPDX-License-Identifier: Apache-2.0
#include "predictor/plan.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "core/base/format.h"
#include "predictor/loss_history.h"

namespace freshet {
namespace {

std::vector<double> predicted_costs(const ReplayClock& clock, const Forecast& forecast) {
  std::vector<double> costs;
  for (std::int64_t row = clock.horizon().warmup; row <= clock.horizon().rows; ++row) {
    costs.push_back(forecast(static_cast<double>(row)));
  }
  return costs;
}

/// The curve's own falls over the rows that it was fitted to: those of single rows are mostly noise.
double threshold_of(const ReplayClock& clock, const Forecast& forecast) {
  std::vector<double> fitted;
  for (auto row = static_cast<std::int64_t>(forecast.from_iteration()); row <= clock.horizon().warmup; ++row) {
    fitted.push_back(forecast(static_cast<double>(row)));
  }
  return greedy_threshold(fitted);
}

/// As LossHistory takes them.
bool is_usable(double loss) { return std::fabs(loss) <= LossHistory::kLargestLoss; }

/// Why the forecast is nothing to plan with; empty when it is.
std::string problem_of(const Forecast& forecast) {
  if (forecast.is_fallback()) return forecast.note();
  return forecast.chosen().name() == "constant" ? "of all curves a constant fits best" : "";
}

}  // namespace

Result<Plan> plan_schedules(const ReplayClock& clock, std::span<const double> warmup_losses, const FitOptions& options,
                            std::int64_t work_max) {
  if (static_cast<std::int64_t>(warmup_losses.size()) != clock.horizon().warmup) {
    return fail(Code::invalid_argument,
                format("{} losses for a warm-up of {} rows", warmup_losses.size(), clock.horizon().warmup));
  }
  std::vector<double> iterations(warmup_losses.size());
  std::iota(iterations.begin(), iterations.end(), 1.0);
  Plan plan;
  const bool blind = std::ranges::none_of(warmup_losses, is_usable);
  const std::vector<double> nothing(blind ? warmup_losses.size() : 0);
  FRESHET_ASSIGN(plan.forecast, fit(iterations, blind ? nothing : warmup_losses, options));
  plan.costs = predicted_costs(clock, plan.forecast);
  plan.threshold = threshold_of(clock, plan.forecast);
  plan.note = blind ? "no loss of the warm-up is known" : problem_of(plan.forecast);
  if (!plan.note.empty()) {
    plan.fixed = fallback_schedule(clock);
    plan.greedy = plan.fixed.rows;
    plan.optimal = plan.fixed.rows;
    return plan;
  }
  FRESHET_ASSIGN(plan.fixed, fixed_schedule(clock, plan.costs));
  FRESHET_ASSIGN(plan.greedy, greedy_schedule(clock, plan.costs, plan.threshold));
  FRESHET_ASSIGN(auto optimal, optimal_schedule(clock, plan.costs, {}, work_max));
  plan.optimal = std::move(optimal.rows);
  plan.exact = optimal.exact;
  return plan;
}

}  // namespace freshet
