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

/// The power of two that makes the largest of these losses a number below 1. Schedules stay the same: they depend on
/// how losses compare.
double scale_of(std::span<const double> losses) {
  double largest = 0;
  for (const double loss : losses) largest = std::isfinite(loss) ? std::max(largest, std::fabs(loss)) : largest;
  int exponent = 0;
  std::frexp(largest, &exponent);
  return largest > 0 ? std::ldexp(1.0, -exponent) : 1;
}

void unscale(Plan& plan) {
  for (double& cost : plan.costs) cost /= plan.scale;
  plan.threshold /= plan.scale;
}

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
  const bool blind = std::ranges::none_of(warmup_losses, [](double loss) { return std::isfinite(loss); });
  plan.scale = std::ranges::any_of(warmup_losses, is_usable) ? 1 : scale_of(warmup_losses);
  std::vector<double> fitted(warmup_losses.begin(), warmup_losses.end());
  for (double& loss : fitted) loss = blind ? 0 : loss * plan.scale;
  FRESHET_ASSIGN(plan.forecast, fit(iterations, fitted, options));
  plan.costs = predicted_costs(clock, plan.forecast);
  plan.threshold = threshold_of(clock, plan.forecast);
  plan.note = blind ? "no loss of the warm-up is known" : problem_of(plan.forecast);
  if (!plan.note.empty()) {
    plan.fixed = fallback_schedule(clock);
    plan.greedy = plan.fixed.rows;
    plan.optimal = plan.fixed.rows;
    unscale(plan);
    return plan;
  }
  FRESHET_ASSIGN(plan.fixed, fixed_schedule(clock, plan.costs));
  FRESHET_ASSIGN(plan.greedy, greedy_schedule(clock, plan.costs, plan.threshold));
  FRESHET_ASSIGN(auto optimal, optimal_schedule(clock, plan.costs, {}, work_max));
  plan.optimal = std::move(optimal.rows);
  plan.exact = optimal.exact;
  unscale(plan);
  return plan;
}

}  // namespace freshet
