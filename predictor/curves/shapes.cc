// SPDX-License-Identifier: Apache-2.0
#include "predictor/curves/shapes.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace freshet::curves {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// More points than these do not make a better guess. They are taken evenly from the list.
constexpr std::size_t kPointsForGuess = 48;

std::vector<CurvePoint> thinned(std::span<const CurvePoint> points) {
  if (points.size() <= kPointsForGuess) return {points.begin(), points.end()};
  std::vector<CurvePoint> some;
  some.reserve(kPointsForGuess);
  for (std::size_t i = 0; i < kPointsForGuess; ++i) {
    some.push_back(points[i * (points.size() - 1) / (kPointsForGuess - 1)]);
  }
  return some;
}

}  // namespace

Line fit_line(std::span<const CurvePoint> points, std::span<const double> basis, Offset offset) {
  double weights = 0, mean_y = 0, mean_g = 0;
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (!std::isfinite(basis[i])) return {.error = kInfinity};
    weights += points[i].weight;
    mean_y += points[i].weight * points[i].y;
    mean_g += points[i].weight * basis[i];
  }
  const bool centred = offset == Offset::free;
  mean_y = centred ? mean_y / weights : 0;
  mean_g = centred ? mean_g / weights : 0;
  double gg = 0, gy = 0, yy = 0;
  for (std::size_t i = 0; i < points.size(); ++i) {
    const double g = basis[i] - mean_g;
    const double y = points[i].y - mean_y;
    gg += points[i].weight * g * g;
    gy += points[i].weight * g * y;
    yy += points[i].weight * y * y;
  }
  if (!(gg > 0) || !std::isfinite(gg)) return {.error = kInfinity};
  const double gain = gy / gg;
  const double error = std::max(0.0, yy - gain * gy);
  return {.offset = mean_y - gain * mean_g, .gain = gain, .error = std::isfinite(error) ? error : kInfinity};
}

std::vector<ShapedLine> best_shapes(std::span<const CurvePoint> all, const std::vector<Shape>& grid, Offset offset,
                                    const std::function<double(double, const Shape&)>& basis, std::size_t count) {
  const std::vector<CurvePoint> points = thinned(all);
  std::vector<ShapedLine> lines;
  lines.reserve(grid.size());
  std::vector<double> values(points.size());
  for (const Shape& shape : grid) {
    for (std::size_t i = 0; i < points.size(); ++i) values[i] = basis(points[i].x, shape);
    const Line line = fit_line(points, values, offset);
    if (line.error < kInfinity) lines.push_back({.line = line, .shape = shape});
  }
  std::stable_sort(lines.begin(), lines.end(),
                   [](const ShapedLine& a, const ShapedLine& b) { return a.line.error < b.line.error; });
  if (lines.size() > count) lines.resize(count);
  return lines;
}

std::vector<double> geometric(double first, double last, std::size_t count) {
  std::vector<double> values;
  values.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const double part = count > 1 ? static_cast<double>(i) / static_cast<double>(count - 1) : 0;
    values.push_back(first * std::pow(last / first, part));
  }
  return values;
}

std::vector<Shape> pairs(std::span<const double> first, std::span<const double> second) {
  std::vector<Shape> shapes;
  shapes.reserve(first.size() * second.size());
  for (const double a : first) {
    for (const double b : second) shapes.push_back({a, b});
  }
  return shapes;
}

std::vector<Shape> singles(std::span<const double> values) {
  std::vector<Shape> shapes;
  shapes.reserve(values.size());
  for (const double value : values) shapes.push_back({value});
  return shapes;
}

std::vector<double> rates(std::span<const CurvePoint> points, std::size_t count) {
  const double longest = 5 * std::max(1.0, points.back().x);
  const double shortest = std::max(1.0, points.front().x) / 2;
  return geometric(1 / longest, 1 / shortest, count);
}

}  // namespace freshet::curves
