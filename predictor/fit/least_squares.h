// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Levenberg-Marquardt for one family from one start, through Eigen. This header does not include Eigen, since it
/// compiles slowly: least_squares.cc alone does. For files of predictor/.

#include <optional>
#include <span>
#include <vector>

#include "predictor/curves/curve.h"

namespace freshet {

struct Solution {
  std::vector<double> parameters;  ///< Within their bounds.
  double cost = 0;                 ///< Sum of row_weights[i] * (value - y)^2.
};

/// Minimises the weighted squares from `start`, inside the bounds (by a change of variables). Nothing when the family
/// has no finite cost there. REQUIRES: row_weights.size() == points.size() >= parameters.
std::optional<Solution> least_squares(const Curve& family, std::span<const CurvePoint> points,
                                      std::span<const double> row_weights, std::span<const double> start,
                                      int max_evaluations);

/// (J^T W J)^-1 at `parameters`, row by row: times the variance of a row of weight 1 it is the parameters' covariance.
/// A direction in which the points say nothing is left out (as is a parameter at its bound), so that the inverse always
/// exists.
std::vector<double> inverse_information(const Curve& family, std::span<const CurvePoint> points,
                                        std::span<const double> row_weights, std::span<const double> parameters);

}  // namespace freshet
