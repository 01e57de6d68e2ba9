// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "predictor/curves/families.h"
#include "predictor/curves/shapes.h"

/// a - (a - b) exp(-(k x)^d): Weibull's growth curve, a stretched exponential from b (at x = 0) to a. Domhan et al.
/// (2015), table 1; WBL4 of Viering and Loog (2022). With w = (k x)^d, e = exp(-w):
///   d/da = 1 - e    d/db = e    d/dk = (a - b) d w e / k    d/dd = (a - b) w ln(k x) e
/// Start: a grid of k and d, a and b by linear least squares.

namespace freshet::curves {
namespace {

class Weibull final : public Family {
 public:
  Weibull()
      : Family("weibull", "a - (a - b) exp(-(k x)^d)",
               {{.name = "a"}, {.name = "b"}, rate_parameter("k"), stretch_parameter("d")}) {}

  double value(double x, std::span<const double> p) const override {
    return p[0] - (p[0] - p[1]) * std::exp(-std::pow(p[2] * x, p[3]));
  }

  void gradient(double x, std::span<const double> p, std::span<double> out) const override {
    const double power = std::pow(p[2] * x, p[3]);
    const double decay = std::exp(-power);
    // Where the power leaves the doubles the exponential has long been 0, and wins.
    const double product = decay > 0 ? (p[0] - p[1]) * power * decay : 0;
    out[0] = 1 - decay;
    out[1] = decay;
    out[2] = product * p[3] / p[2];
    out[3] = product * std::log(p[2] * x);
  }

  std::vector<std::vector<double>> starts(std::span<const CurvePoint> points) const override {
    const auto basis = [](double x, const Shape& shape) { return std::exp(-std::pow(shape[0] * x, shape[1])); };
    const auto grid = pairs(rates(points, 12), Shape{0.2, 0.4, 0.7, 1, 1.5, 3});
    return starts_from(best_shapes(points, grid, Offset::free, basis), [](const Line& line, const Shape& shape) {
      return Shape{line.offset, line.offset + line.gain, shape[0], shape[1]};
    });
  }
};

}  // namespace

std::shared_ptr<const Curve> weibull() { return std::make_shared<Weibull>(); }

}  // namespace freshet::curves
