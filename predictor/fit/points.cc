// SPDX-License-Identifier: Apache-2.0
#include "predictor/fit/points.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace freshet {
namespace {

constexpr double kSpike = 6;

double median_around(std::span<const CurvePoint> points, std::size_t i) {
  const std::size_t reach = std::min({kSpikeReach, i, points.size() - 1 - i});
  std::array<double, 2 * kSpikeReach + 1> window{};
  for (std::size_t k = 0; k <= 2 * reach; ++k) window[k] = points[i - reach + k].y;
  const auto middle = window.begin() + static_cast<std::ptrdiff_t>(reach);
  std::nth_element(window.begin(), middle, middle + static_cast<std::ptrdiff_t>(reach) + 1);
  return *middle;
}

}  // namespace

std::vector<double> median_residuals(std::span<const CurvePoint> points) {
  std::vector<double> residuals;
  residuals.reserve(points.size());
  for (std::size_t i = 0; i < points.size(); ++i) residuals.push_back(points[i].y - median_around(points, i));
  return residuals;
}

double noise_of(std::span<const CurvePoint> points, std::span<const double> residuals) {
  if (points.empty()) return 0;
  std::vector<double> sizes;
  sizes.reserve(points.size());
  double sum = 0;
  for (std::size_t i = 0; i < points.size(); ++i) {
    sizes.push_back(std::abs(residuals[i]) * std::sqrt(points[i].weight));
    sum += sizes.back();
  }
  const auto middle = sizes.begin() + static_cast<std::ptrdiff_t>(sizes.size() / 2);
  std::nth_element(sizes.begin(), middle, sizes.end());
  return *middle > 0 ? 1.4826 * *middle : 1.2533 * sum / static_cast<double>(sizes.size());
}

std::size_t draw_spikes(std::span<CurvePoint> points, std::size_t begin, std::size_t end) {
  const std::vector<double> residuals = median_residuals(points);
  const double noise = noise_of(points, residuals);
  std::size_t spikes = 0;
  for (std::size_t i = begin; i < end; ++i) {
    if (std::abs(residuals[i]) * std::sqrt(points[i].weight) <= kSpike * noise) continue;
    points[i].y -= residuals[i];
    ++spikes;
  }
  return spikes;
}

std::vector<CurvePoint> merged(std::span<const CurvePoint> points, std::size_t cells) {
  if (points.size() <= cells) return {points.begin(), points.end()};
  const double first = points.front().x;
  const double range = std::cbrt(points.back().x - first);
  std::vector<CurvePoint> bins;
  bins.reserve(cells);
  std::size_t cell = cells;  // Of the last bin; none yet.
  for (const CurvePoint& point : points) {
    const double place = std::cbrt(point.x - first) / range * static_cast<double>(cells);
    const std::size_t here = std::min(cells - 1, static_cast<std::size_t>(place));
    if (bins.empty() || here != cell) {
      bins.push_back(point);
      cell = here;
      continue;
    }
    CurvePoint& bin = bins.back();
    const double part = point.weight / (bin.weight + point.weight);
    bin.scatter += point.scatter + bin.weight * part * (point.y - bin.y) * (point.y - bin.y);
    bin.x += (point.x - bin.x) * part;
    bin.y += (point.y - bin.y) * part;
    bin.weight += point.weight;
  }
  return bins;
}

}  // namespace freshet
