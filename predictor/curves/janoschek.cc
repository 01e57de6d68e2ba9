// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "predictor/curves/families.h"
#include "predictor/curves/shapes.h"

/// a - (a - b) exp(-k x^d): Janoschek's growth curve, a stretched exponential from b (at x = 0) to a. Domhan et al.
/// (2015), table 1. With e = exp(-k x^d):
///   d/da = 1 - e    d/db = e    d/dk = (a - b) x^d e    d/dd = (a - b) k x^d ln(x) e
/// These are weibull's curves with k for kappa^d; CurveFamilies::distinct() has weibull alone.
/// Start: a grid of d and of the rate k^(1/d), a and b by linear least squares.

namespace freshet::curves {
namespace {

class Janoschek final : public Family {
 public:
  Janoschek()
      : Family("janoschek", "a - (a - b) exp(-k x^d)",
               {{.name = "a"},
                {.name = "b"},
                {.name = "k", .lower = 1e-60, .upper = 20, .scale = ParameterScale::logarithmic},
                stretch_parameter("d")}) {}

  double value(double x, std::span<const double> p) const override {
    return p[0] - (p[0] - p[1]) * std::exp(-p[2] * std::pow(x, p[3]));
  }

  void gradient(double x, std::span<const double> p, std::span<double> out) const override {
    const double power = std::pow(x, p[3]);
    const double decay = std::exp(-p[2] * power);
    // Where the power leaves the doubles the exponential has long been 0, and wins.
    const double product = decay > 0 ? (p[0] - p[1]) * power * decay : 0;
    out[0] = 1 - decay;
    out[1] = decay;
    out[2] = product;
    out[3] = product * p[2] * std::log(x);
  }

  std::vector<std::vector<double>> starts(std::span<const CurvePoint> points) const override {
    const auto basis = [](double x, const Shape& shape) { return std::exp(-std::pow(shape[0] * x, shape[1])); };
    const auto grid = pairs(rates(points, 12), Shape{0.2, 0.4, 0.7, 1, 1.5, 3});
    return starts_from(best_shapes(points, grid, Offset::free, basis), [](const Line& line, const Shape& shape) {
      return Shape{line.offset, line.offset + line.gain, std::pow(shape[0], shape[1]), shape[1]};
    });
  }
};

}  // namespace

std::shared_ptr<const Curve> janoschek() { return std::make_shared<Janoschek>(); }

}  // namespace freshet::curves
