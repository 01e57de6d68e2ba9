// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>

#include "predictor/fit.h"

namespace freshet {
namespace {

// The normal distribution's quantile for p above a half, to 4.5e-4 (Abramowitz and Stegun, 26.2.23): enough for a band.
double normal_quantile(double p) {
  const double t = std::sqrt(-2 * std::log(1 - p));
  return t - (2.515517 + t * (0.802853 + t * 0.010328)) / (1 + t * (1.432788 + t * (0.189269 + t * 0.001308)));
}

double variance_at(const FittedCurve& curve, const std::vector<double>& covariance, double iteration) {
  const std::size_t n = curve.parameters.size();
  std::array<double, kMaxParameters> row{};
  curve.family->gradient(std::max(1.0, iteration), curve.parameters, {row.data(), n});
  double sum = 0;
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t k = 0; k < n; ++k) sum += row[i] * covariance[i * n + k] * row[k];
  }
  return std::isfinite(sum) ? std::max(0.0, sum) : 0;
}

}  // namespace

Forecast::Limits Forecast::limits_at(double iteration) const {
  const double beyond = std::max(0.0, iteration - to_iteration_) / std::max(1.0, to_iteration_ - from_iteration_);
  const double room = (most_ - least_) * (1 + beyond);
  return {.least = least_ >= 0 ? std::max(0.0, least_ - room) : least_ - room, .most = most_ + room};
}

double Forecast::plausible(const FittedCurve& curve, double iteration) const {
  const double value = curve(iteration);
  const Limits limits = limits_at(iteration);
  return std::clamp(std::isnan(value) ? curve(to_iteration_) : value, limits.least, limits.most);
}

double Forecast::operator()(double iteration) const {
  if (combine_ == Combine::best) return plausible(chosen_, iteration);
  double sum = 0;
  for (const Member& member : members_) sum += member.weight * plausible(member.curve, iteration);
  return sum;
}

Band Forecast::band(double iteration, double probability) const {
  const double middle = (*this)(iteration);
  double variance = 0;
  for (const Member& member : members_) {
    if (!(member.weight > 0)) continue;
    const double off = plausible(member.curve, iteration) - middle;
    variance += member.weight * (off * off + variance_at(member.curve, member.covariance, iteration));
  }
  const double tail = std::clamp(probability, 1e-6, 1 - 1e-6);
  const double half = normal_quantile((1 + tail) / 2) * std::sqrt(variance);
  const Limits limits = limits_at(iteration);
  return {.lower = std::min(middle, std::max(limits.least, middle - half)),
          .middle = middle,
          .upper = std::max(middle, std::min(limits.most, middle + half))};
}

}  // namespace freshet
