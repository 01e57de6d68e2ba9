// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The steps of fit(), from points to a Forecast. For fit.cc.

#include <vector>

#include "predictor/curves/curve.h"
#include "predictor/fit.h"
#include "predictor/fit/least_squares.h"

namespace freshet {

/// How much a residual of `z` standard deviations counts, from 1 (all of it) down.
double robust_weight(RobustLoss loss, double z);
/// Twice the robust loss itself: z^2 near 0.
double robust_square(RobustLoss loss, double z);

/// The input of a fit: points, the same with their spikes drawn to their neighbours, and how noisy a row is.
struct Sample {
  std::vector<CurvePoint> points;
  std::vector<CurvePoint> clean;
  double noise = 0;

  static Sample of(std::vector<CurvePoint> points);
  /// Lets each point count (x / last x)^recency times what it did.
  void weigh_by_age(double recency);
  /// The points up to `count`.
  Sample first(std::size_t count) const;
};

/// One family, fitted.
struct RobustFit {
  std::vector<double> parameters;
  std::vector<double> row_weights;  ///< Rows, times what the robust loss left of them.
  double scale = 0;                 ///< Of a residual times the root of its row's weight, so age makes it smaller than
                                    ///< row_scatter(); spikes not counted.
};

/// Errors say why this family cannot be fitted to this sample.
Result<RobustFit> fit_family(const Curve& family, const Sample& sample, const FitOptions& options,
                             const std::vector<double>* warm_start);

}  // namespace freshet
