// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The change of variables that keeps a parameter inside its bounds while the solver moves freely (as MINUIT does it):
/// with both bounds a sine, with one a root, with none nothing; for logarithmic parameters all of this on their
/// logarithm.

#include <algorithm>
#include <cmath>

#include "predictor/curves/curve.h"

namespace freshet {

class BoundedCoordinate {
 public:
  explicit BoundedCoordinate(const CurveParameter& parameter)
      : logarithmic_(parameter.scale == ParameterScale::logarithmic),
        lower_(logarithmic_ ? std::log(parameter.lower) : parameter.lower),
        upper_(logarithmic_ ? std::log(parameter.upper) : parameter.upper),
        lower_value_(parameter.lower),
        upper_value_(parameter.upper) {}

  /// From the solver's coordinate to the parameter.
  double value(double free) const {
    const double inner = scaled(free);
    return std::clamp(logarithmic_ ? std::exp(inner) : inner, lower_value_, upper_value_);
  }

  /// d value / d free.
  double slope(double free) const {
    const double outer = logarithmic_ ? std::exp(scaled(free)) : 1;
    if (has_lower() && has_upper()) return outer * half_width() * std::cos(free);
    if (has_lower()) return outer * free / std::sqrt(free * free + 1);
    if (has_upper()) return -outer * free / std::sqrt(free * free + 1);
    return outer;
  }

  /// The way back. A value at a bound is brought a little inside, for the slope is 0 at the bound itself.
  double free(double value) const {
    double inner = value;
    if (logarithmic_) inner = value > 0 ? std::log(value) : lower_;
    if (has_lower() && has_upper())
      return std::asin(std::clamp((inner - lower_) / half_width() - 1, -kInside, kInside));
    if (has_lower()) return std::sqrt(std::pow(std::max(inner - lower_, 1e-3) + 1, 2) - 1);
    if (has_upper()) return std::sqrt(std::pow(std::max(upper_ - inner, 1e-3) + 1, 2) - 1);
    return inner;
  }

 private:
  static constexpr double kInside = 0.9999;

  bool has_lower() const { return std::isfinite(lower_); }
  bool has_upper() const { return std::isfinite(upper_); }
  double half_width() const { return (upper_ - lower_) / 2; }

  double scaled(double free) const {
    if (has_lower() && has_upper()) return lower_ + half_width() * (std::sin(free) + 1);
    if (has_lower()) return lower_ - 1 + std::sqrt(free * free + 1);
    if (has_upper()) return upper_ + 1 - std::sqrt(free * free + 1);
    return free;
  }

  bool logarithmic_;
  double lower_, upper_;
  double lower_value_, upper_value_;
};

}  // namespace freshet
