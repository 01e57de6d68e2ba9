// SPDX-License-Identifier: Apache-2.0
#include "predictor/failure_interval.h"

#include <cmath>
#include <string_view>

#include "core/base/format.h"

namespace freshet {
namespace {

constexpr double kLeast = 1e-9;
constexpr double kMost = 1e12;

Status check(std::string_view what, double value, double least) {
  if (std::isfinite(value) && value >= least && value <= kMost) return {};
  return fail(Code::invalid_argument, format("{} is {} s; it must be from {} to {} s", what, value, least, kMost));
}

double daly(const FailureCosts& costs) {
  const double c = costs.checkpoint_s;
  const double m = costs.mtbf_s;
  if (c >= 2 * m) return m;
  const double ratio = c / (2 * m);
  return std::sqrt(2 * c * m) * (1 + std::sqrt(ratio) / 3 + ratio / 9) - c;
}

/// Where E(w)/w is least, its derivative vanishes: e^((w+C)/M) (1 - w/M) = 1. The left side falls from above 1 at w = 0
/// to 0 at w = M. Written so that nothing is lost where C is tiny beside M.
double best(const FailureCosts& costs) {
  const double c = costs.checkpoint_s / costs.mtbf_s;
  const auto above = [c](double w) { return std::expm1(w + c) * (1 - w) > w; };
  double low = 0;
  double high = 1;
  for (double middle = 0.5; middle > low && middle < high; middle = low + (high - low) / 2) {
    (above(middle) ? low : high) = middle;
  }
  return low * costs.mtbf_s;
}

}  // namespace

double waste_of(const FailureCosts& costs, double interval_s) {
  const double m = costs.mtbf_s;
  const double took = m * std::exp(costs.restart_s / m) * std::expm1((interval_s + costs.checkpoint_s) / m);
  return 1 - interval_s / took;
}

Result<FailureInterval> failure_interval(const FailureCosts& costs) {
  FRESHET_TRY(check("a checkpoint's cost", costs.checkpoint_s, kLeast));
  FRESHET_TRY(check("the mean time between failures", costs.mtbf_s, kLeast));
  FRESHET_TRY(check("a restart's cost", costs.restart_s, 0));
  if (costs.checkpoint_s > 100 * costs.mtbf_s) {
    return fail(Code::invalid_argument, format("a checkpoint of {} s is never done where a failure comes every {} s",
                                               costs.checkpoint_s, costs.mtbf_s));
  }
  FailureInterval found{.young_s = std::sqrt(2 * costs.checkpoint_s * costs.mtbf_s), .daly_s = daly(costs)};
  found.interval_s = best(costs);
  found.waste = waste_of(costs, found.interval_s);
  return found;
}

}  // namespace freshet
