// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "predictor/curves/families.h"
#include "predictor/curves/shapes.h"

/// a exp(-b x): an exponential that goes to 0. Viper, section 4.3 (its list is taken from Viering and Loog, "The shape
/// of learning curves: a review", 2022, table of parametric models, EXP2).
///   d/da = exp(-b x)    d/db = -a x exp(-b x)
/// Start: a grid of b, a by linear least squares.

namespace freshet::curves {
namespace {

class Exp2 final : public Family {
 public:
  Exp2() : Family("exp2", "a exp(-b x)", {{.name = "a"}, rate_parameter("b")}) {}

  double value(double x, std::span<const double> p) const override { return p[0] * std::exp(-p[1] * x); }

  void gradient(double x, std::span<const double> p, std::span<double> out) const override {
    const double decay = std::exp(-p[1] * x);
    out[0] = decay;
    out[1] = -p[0] * x * decay;
  }

  std::vector<std::vector<double>> starts(std::span<const CurvePoint> points) const override {
    const auto basis = [](double x, const Shape& shape) { return std::exp(-shape[0] * x); };
    return starts_from(best_shapes(points, singles(rates(points, 24)), Offset::zero, basis),
                       [](const Line& line, const Shape& shape) {
                         return Shape{line.gain, shape[0]};
                       });
  }
};

}  // namespace

std::shared_ptr<const Curve> exp2() { return std::make_shared<Exp2>(); }

}  // namespace freshet::curves
