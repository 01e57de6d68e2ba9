// SPDX-License-Identifier: Apache-2.0
#pragma once

/// How families guess where to start. Nearly all formulas are offset + gain * basis(x; shape): for a given shape the
/// best offset and gain follow from linear least squares in one pass, so a start is found by trying a grid of shapes.
/// That is the idea of variable projection (Golub and Pereyra, 1973), taken as far as a guess needs.

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "predictor/curves/curve.h"

namespace freshet::curves {

/// offset + gain * basis, fitted by weighted least squares.
struct Line {
  double offset = 0;
  double gain = 0;
  double error = 0;  ///< Weighted sum of squares; infinite when the basis is not finite or does not vary.
};

enum class Offset { free, zero };

Line fit_line(std::span<const CurvePoint> points, std::span<const double> basis, Offset offset);

using Shape = std::vector<double>;
struct ShapedLine {
  Line line;
  Shape shape;
};

/// The best shapes of `grid`, best first, at most `count`. `basis(x, shape)`.
std::vector<ShapedLine> best_shapes(std::span<const CurvePoint> points, const std::vector<Shape>& grid, Offset offset,
                                    const std::function<double(double, const Shape&)>& basis, std::size_t count = 4);

/// The starts of a family: parameters(line, shape) of each.
template <typename Parameters>
std::vector<std::vector<double>> starts_from(const std::vector<ShapedLine>& best, Parameters parameters) {
  std::vector<std::vector<double>> starts;
  for (const auto& [line, shape] : best) starts.push_back(parameters(line, shape));
  return starts;
}

/// `count` values from `first` to `last`, both above 0, evenly in their logarithm.
std::vector<double> geometric(double first, double last, std::size_t count);

/// All pairs.
std::vector<Shape> pairs(std::span<const double> first, std::span<const double> second);
/// Each value alone.
std::vector<Shape> singles(std::span<const double> values);

/// Rates 1/t for times t from a bit under the first point's to well past the last point's distance.
std::vector<double> rates(std::span<const CurvePoint> points, std::size_t count);

}  // namespace freshet::curves
