// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "predictor/curves/families.h"
#include "predictor/curves/shapes.h"

/// a (x + d)^-b + c: a power law that starts d iterations earlier. POW4 of Viering and Loog (2022); Domhan et al.
/// (2015) write c - (a x + b)^-alpha, which has no curve that this one lacks.
///   d/da = (x + d)^-b    d/db = -a ln(x + d) (x + d)^-b    d/dc = 1    d/dd = -a b (x + d)^(-b - 1)
/// Start: a grid of b and d, a and c by linear least squares.

namespace freshet::curves {
namespace {

class Pow4 final : public Family {
 public:
  Pow4()
      : Family("pow4", "a (x + d)^-b + c",
               {{.name = "a"},
                exponent_parameter("b"),
                {.name = "c"},
                {.name = "d", .lower = 1e-3, .upper = 1e12, .scale = ParameterScale::logarithmic}}) {}

  double value(double x, std::span<const double> p) const override { return p[0] * std::pow(x + p[3], -p[1]) + p[2]; }

  void gradient(double x, std::span<const double> p, std::span<double> out) const override {
    const double power = std::pow(x + p[3], -p[1]);
    out[0] = power;
    out[1] = -p[0] * std::log(x + p[3]) * power;
    out[2] = 1;
    out[3] = -p[0] * p[1] * power / (x + p[3]);
  }

  std::vector<std::vector<double>> starts(std::span<const CurvePoint> points) const override {
    // (1 + x/d)^-b is the same up to a gain, and stays within the doubles for large d.
    const auto basis = [](double x, const Shape& shape) { return std::pow(1 + x / shape[1], -shape[0]); };
    const auto grid = pairs(geometric(0.1, 4, 8), geometric(0.1, 2 * points.back().x, 8));
    return starts_from(best_shapes(points, grid, Offset::free, basis), [](const Line& line, const Shape& shape) {
      return Shape{line.gain * std::pow(shape[1], shape[0]), shape[0], line.offset, shape[1]};
    });
  }
};

}  // namespace

std::shared_ptr<const Curve> pow4() { return std::make_shared<Pow4>(); }

}  // namespace freshet::curves
