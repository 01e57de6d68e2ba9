// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What a user would write instead of fit(): each family through Eigen's Levenberg-Marquardt on all rows, from one
/// start, with the smallest squared error winning.

#include <span>

#include "predictor/curves/curve.h"

namespace freshet::benchmarks {

FittedCurve plain_fit(const CurveFamilies& families, std::span<const CurvePoint> rows);

}  // namespace freshet::benchmarks
