// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Lists of points before any curve is fitted: how noisy they are, which of them are spikes, and fewer of them. For
/// files of predictor/.

#include <cstddef>
#include <span>
#include <vector>

#include "predictor/curves/curve.h"

namespace freshet {

/// To how many neighbours on each side a point is compared.
inline constexpr std::size_t kSpikeReach = 3;

/// How far each y is from the median of itself and up to three neighbours on each side (as many on one side as on the
/// other, so the ends are at 0). In a list that only falls or only rises all of it is 0, however steep it is.
std::vector<double> median_residuals(std::span<const CurvePoint> points);

/// The standard deviation of a row (a point of weight 1) as these residuals show it, spikes not counted: 1.4826 times
/// the median of their sizes, or, where most of them are 0 (a metric of few values), 1.2533 times their mean.
double noise_of(std::span<const CurvePoint> points, std::span<const double> residuals);

/// Draws points that are more than six times the noise off their neighbours to these, among those from `begin` up to
/// `end`; returns how many.
std::size_t draw_spikes(std::span<CurvePoint> points, std::size_t begin, std::size_t end);

/// Merges neighbours into at most `cells` weighted means, over cells that are even in the cube root of x - first x:
/// fine where a curve is young and steep, coarse later.
std::vector<CurvePoint> merged(std::span<const CurvePoint> points, std::size_t cells);

}  // namespace freshet
