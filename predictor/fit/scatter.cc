// SPDX-License-Identifier: Apache-2.0
#include "predictor/fit/scatter.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace freshet {
namespace {

constexpr double kScatterLate = 3;   ///< Exponent of the weight by age.
constexpr double kScatterSpike = 6;  ///< In units of the noise, as where rows are merged.

/// The iterations that a point stands for, from the distance to its neighbours.
double width_at(std::span<const CurvePoint> points, std::size_t i) {
  if (points.size() < 2) return 0;
  const std::size_t before = i == 0 ? 0 : i - 1;
  const std::size_t after = std::min(i + 1, points.size() - 1);
  return (points[after].x - points[before].x) / static_cast<double>(after - before);
}

/// The mean square of a point's rows off the curve. Rows of a bin scatter around its mean, of which the curve's own
/// fall within the bin is no scatter.
double mean_square(std::span<const CurvePoint> points, std::size_t i, const FittedCurve& curve) {
  const CurvePoint& point = points[i];
  const double off = point.y - curve(point.x);
  if (point.scatter == 0) return off * off;
  const double half = width_at(points, i) / 2;
  const double fall = curve(point.x + half) - curve(point.x - half);
  return off * off + std::max(0.0, point.scatter / point.weight - fall * fall / 12);
}

double median_square(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

double row_scatter(std::span<const CurvePoint> points, const FittedCurve& curve) {
  if (points.empty()) return 0;
  std::vector<double> squares;
  for (std::size_t i = 0; i < points.size(); ++i) squares.push_back(mean_square(points, i, curve));
  const double typical = 1.4826 * 1.4826 * median_square(squares);
  const double most = typical > 0 ? kScatterSpike * kScatterSpike * typical : INFINITY;
  double sum = 0, weights = 0, weights_squared = 0;
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (!(squares[i] <= most)) continue;
    const double late = std::pow(points[i].x / points.back().x, kScatterLate);
    sum += late * points[i].weight * squares[i];
    weights += late * points[i].weight;
    weights_squared += late * late * points[i].weight;
  }
  if (!(weights > 0)) return 0;
  // The curve was drawn towards the rows, and the more so the fewer they are.
  const double rows = weights * weights / weights_squared;
  const auto parameters = static_cast<double>(curve.parameters.size());
  const double freedom = rows > parameters + 1 ? rows / (rows - parameters) : 1;
  return std::sqrt(sum / weights * freedom);
}

}  // namespace freshet
