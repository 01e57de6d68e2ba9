// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "core/base/format.h"
#include "predictor/fit/fitter.h"
#include "predictor/fit/points.h"

namespace freshet {
namespace {

constexpr int kEvaluations = 60;    // From a cold start.
constexpr int kReevaluations = 20;  // After the rows were reweighed: the answer is near.
constexpr int kReweighings = 4;
constexpr double kSettled = 1e-3;  // Of the scale's change.

// Where each loss begins to bend, so that it keeps 95 % of the efficiency of least squares on normal noise.
constexpr double kHuber = 1.345;
constexpr double kSoftL1 = 1.8;
constexpr double kCauchy = 2.385;

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::vector<double> deviations(const Curve& family, std::span<const CurvePoint> points,
                               std::span<const double> parameters) {
  std::vector<double> all;
  all.reserve(points.size());
  for (const CurvePoint& point : points) {
    const double residual = family.value(point.x, parameters) - point.y;
    all.push_back(std::abs(residual) * std::sqrt(point.weight));
  }
  return all;
}

std::vector<double> reweighed(RobustLoss loss, std::span<const CurvePoint> points, std::span<const double> sizes,
                              double scale) {
  std::vector<double> weights;
  weights.reserve(points.size());
  for (std::size_t i = 0; i < points.size(); ++i) {
    weights.push_back(points[i].weight * (scale > 0 ? robust_weight(loss, sizes[i] / scale) : 1.0));
  }
  return weights;
}

bool all_finite(std::span<const double> values) {
  return std::all_of(values.begin(), values.end(), [](double value) { return std::isfinite(value); });
}

std::optional<Solution> best_of(const Curve& family, const Sample& sample, std::span<const double> weights,
                                const std::vector<std::vector<double>>& starts, std::size_t most) {
  std::optional<Solution> best;
  std::size_t tried = 0;
  for (const auto& start : starts) {
    if (start.size() != family.parameters().size() || !all_finite(start)) continue;
    if (tried++ == most) break;
    auto solution = least_squares(family, sample.points, weights, start, kEvaluations);
    if (solution && (!best || solution->cost < best->cost)) best = std::move(solution);
  }
  return best;
}

}  // namespace

double robust_weight(RobustLoss loss, double z) {
  const double size = std::abs(z);
  switch (loss) {
    case RobustLoss::none: return 1;
    case RobustLoss::huber: return size <= kHuber ? 1 : kHuber / size;
    case RobustLoss::soft_l1: return 1 / std::sqrt(1 + size * size / (kSoftL1 * kSoftL1));
    case RobustLoss::cauchy: return 1 / (1 + size * size / (kCauchy * kCauchy));
  }
  return 1;
}

double robust_square(RobustLoss loss, double z) {
  const double size = std::abs(z);
  switch (loss) {
    case RobustLoss::none: return size * size;
    case RobustLoss::huber: return size <= kHuber ? size * size : kHuber * (2 * size - kHuber);
    case RobustLoss::soft_l1: return 2 * kSoftL1 * kSoftL1 * (std::sqrt(1 + size * size / (kSoftL1 * kSoftL1)) - 1);
    case RobustLoss::cauchy: return kCauchy * kCauchy * std::log1p(size * size / (kCauchy * kCauchy));
  }
  return size * size;
}

Sample Sample::of(std::vector<CurvePoint> points) {
  Sample sample{.points = std::move(points), .clean = {}, .noise = 0};
  sample.noise = noise_of(sample.points, median_residuals(sample.points));
  sample.clean = sample.points;
  draw_spikes(sample.clean, 0, sample.clean.size());
  return sample;
}

void Sample::weigh_by_age(double recency) {
  if (recency <= 0) return;
  for (std::size_t i = 0; i < points.size(); ++i) {
    const double part = std::max(1e-6, std::pow(points[i].x / points.back().x, recency));
    points[i].weight *= part;
    clean[i].weight *= part;
  }
  noise = noise_of(points, median_residuals(points));
}

Sample Sample::first(std::size_t count) const {
  const auto end = static_cast<std::ptrdiff_t>(count);
  return {
      .points = {points.begin(), points.begin() + end}, .clean = {clean.begin(), clean.begin() + end}, .noise = noise};
}

Result<RobustFit> fit_family(const Curve& family, const Sample& sample, const FitOptions& options,
                             const std::vector<double>* warm_start) {
  const std::size_t needed = family.parameters().size() + 1;
  if (sample.points.size() < needed) {
    return fail(Code::failed_precondition,
                format("{} points, {} needed for {} parameters", sample.points.size(), needed, needed - 1));
  }
  // Before there is a curve, the neighbours' median shows which rows are spikes.
  std::vector<double> sizes;
  for (std::size_t i = 0; i < sample.points.size(); ++i) {
    sizes.push_back(std::abs(sample.points[i].y - sample.clean[i].y) * std::sqrt(sample.points[i].weight));
  }
  std::vector<double> weights = reweighed(options.robust, sample.points, sizes, sample.noise);
  const auto starts = warm_start ? std::vector<std::vector<double>>{*warm_start} : family.starts(sample.clean);
  if (starts.empty()) return fail(Code::failed_precondition, "the family cannot describe these values");
  auto solution = best_of(family, sample, weights, starts, options.starts);
  if (!solution) return fail(Code::failed_precondition, "no start of the search has finite values");

  double scale = 0;
  for (int round = 0;; ++round) {
    sizes = deviations(family, sample.points, solution->parameters);
    const double now = 1.4826 * median(sizes);
    if (!std::isfinite(now)) return fail(Code::failed_precondition, "the fitted values are not finite");
    const bool settled = std::abs(now - scale) <= kSettled * now;
    scale = now;
    weights = reweighed(options.robust, sample.points, sizes, scale);
    if (settled || round == kReweighings || options.robust == RobustLoss::none) break;
    const auto next = least_squares(family, sample.points, weights, solution->parameters, kReevaluations);
    if (next) solution = next;
  }
  return RobustFit{.parameters = std::move(solution->parameters), .row_weights = std::move(weights), .scale = scale};
}

}  // namespace freshet
