// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The families of this folder by name; CurveFamilies::standard() has them all. For files of predictor/ alone.

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "predictor/curves/curve.h"

namespace freshet::curves {

/// The common parts of the families in this folder.
class Family : public Curve {
 public:
  std::string_view name() const final { return name_; }
  std::string_view formula() const final { return formula_; }
  const std::vector<CurveParameter>& parameters() const final { return parameters_; }

 protected:
  Family(std::string_view name, std::string_view formula, std::vector<CurveParameter> parameters)
      : name_(name), formula_(formula), parameters_(std::move(parameters)) {}

 private:
  const std::string_view name_;
  const std::string_view formula_;
  const std::vector<CurveParameter> parameters_;
};

std::shared_ptr<const Curve> constant();
std::shared_ptr<const Curve> exp2();
std::shared_ptr<const Curve> exp3();
std::shared_ptr<const Curve> lin2();
std::shared_ptr<const Curve> expd3();
std::shared_ptr<const Curve> pow3();
std::shared_ptr<const Curve> pow4();
std::shared_ptr<const Curve> logpower();
std::shared_ptr<const Curve> ilog2();
std::shared_ptr<const Curve> janoschek();
std::shared_ptr<const Curve> mmf();
std::shared_ptr<const Curve> vapour();
std::shared_ptr<const Curve> weibull();

/// A rate per iteration, from "as good as never" to "all of it in the first iteration".
inline CurveParameter rate_parameter(std::string name) {
  return {.name = std::move(name), .lower = 1e-12, .upper = 20, .scale = ParameterScale::logarithmic};
}

/// The exponent of a power law. Nearer to 0 than its lower bound, gain and offset become huge and cancel.
inline CurveParameter exponent_parameter(std::string name) {
  return {.name = std::move(name), .lower = 0.02, .upper = 20, .scale = ParameterScale::logarithmic};
}

/// The exponent that stretches (under 1) or sharpens (above 1) an exponential or its like.
inline CurveParameter stretch_parameter(std::string name) {
  return {.name = std::move(name), .lower = 0.05, .upper = 10, .scale = ParameterScale::logarithmic};
}

}  // namespace freshet::curves
