// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "predictor/curves/families.h"
#include "predictor/curves/shapes.h"

/// a x^-b + c: a power law that goes to c. Domhan, Springenberg and Hutter (2015), table 1, have c - a x^-b; POW3 of
/// Viering and Loog (2022). With b near 0 it is a logarithm.
///   d/da = x^-b    d/db = -a ln(x) x^-b    d/dc = 1
/// Start: a grid of b, a and c by linear least squares.

namespace freshet::curves {
namespace {

class Pow3 final : public Family {
 public:
  Pow3() : Family("pow3", "a x^-b + c", {{.name = "a"}, exponent_parameter("b"), {.name = "c"}}) {}

  double value(double x, std::span<const double> p) const override { return p[0] * std::pow(x, -p[1]) + p[2]; }

  void gradient(double x, std::span<const double> p, std::span<double> out) const override {
    const double power = std::pow(x, -p[1]);
    out[0] = power;
    out[1] = -p[0] * std::log(x) * power;
    out[2] = 1;
  }

  std::vector<std::vector<double>> starts(std::span<const CurvePoint> points) const override {
    const auto basis = [](double x, const Shape& shape) { return std::pow(x, -shape[0]); };
    return starts_from(best_shapes(points, singles(geometric(0.05, 4, 20)), Offset::free, basis),
                       [](const Line& line, const Shape& shape) {
                         return Shape{line.gain, shape[0], line.offset};
                       });
  }
};

}  // namespace

std::shared_ptr<const Curve> pow3() { return std::make_shared<Pow3>(); }

}  // namespace freshet::curves
