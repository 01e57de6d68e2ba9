// SPDX-License-Identifier: Apache-2.0
#pragma once

/// How far single rows lie off a curve. For fit.cc.

#include <span>

#include "predictor/curves/curve.h"

namespace freshet {

/// The standard deviation of a late row around the curve, spikes not counted: of rows alone, whether they were merged
/// (CurvePoint::scatter) or not, so that a bin's mean, which scatters less, does not pass for a row, nor an old row's
/// age for a small distance. A row at x counts (x / last x)^3. `parameters` of the curve were fitted to the points.
double row_scatter(std::span<const CurvePoint> points, const FittedCurve& curve);

}  // namespace freshet
