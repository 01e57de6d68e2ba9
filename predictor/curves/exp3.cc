// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "predictor/curves/families.h"
#include "predictor/curves/shapes.h"

/// a exp(-b x) + c: an exponential that goes to c. Viper, section 4.3 (EXP3 of Viering and Loog, 2022).
///   d/da = exp(-b x)    d/db = -a x exp(-b x)    d/dc = 1
/// Start: a grid of b, a and c by linear least squares.

namespace freshet::curves {
namespace {

class Exp3 final : public Family {
 public:
  Exp3() : Family("exp3", "a exp(-b x) + c", {{.name = "a"}, rate_parameter("b"), {.name = "c"}}) {}

  double value(double x, std::span<const double> p) const override { return p[0] * std::exp(-p[1] * x) + p[2]; }

  void gradient(double x, std::span<const double> p, std::span<double> out) const override {
    const double decay = std::exp(-p[1] * x);
    out[0] = decay;
    out[1] = -p[0] * x * decay;
    out[2] = 1;
  }

  std::vector<std::vector<double>> starts(std::span<const CurvePoint> points) const override {
    const auto basis = [](double x, const Shape& shape) { return std::exp(-shape[0] * x); };
    return starts_from(best_shapes(points, singles(rates(points, 24)), Offset::free, basis),
                       [](const Line& line, const Shape& shape) {
                         return Shape{line.gain, shape[0], line.offset};
                       });
  }
};

}  // namespace

std::shared_ptr<const Curve> exp3() { return std::make_shared<Exp3>(); }

}  // namespace freshet::curves
