// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "predictor/curves/families.h"
#include "predictor/curves/shapes.h"

/// c - (c - a) exp(-b x): an exponential from a (at x = 0) to c. Viper, section 4.3 (EXPD3 of Viering and Loog, 2022).
///   d/da = exp(-b x)    d/db = (c - a) x exp(-b x)    d/dc = 1 - exp(-b x)
/// These are exp3's curves under other names: c - (c - a) e = c + (a - c) e. So no error tells the two apart, and where
/// the paper finds exp3 the best, that can only be a tie, or a solver that stopped early. It is here for those
/// who compare with the paper; CurveFamilies::distinct() has exp3 alone. Start: a grid of b, the rest by linear least
/// squares.

namespace freshet::curves {
namespace {

class Expd3 final : public Family {
 public:
  Expd3() : Family("expd3", "c - (c - a) exp(-b x)", {{.name = "a"}, rate_parameter("b"), {.name = "c"}}) {}

  double value(double x, std::span<const double> p) const override {
    return p[2] - (p[2] - p[0]) * std::exp(-p[1] * x);
  }

  void gradient(double x, std::span<const double> p, std::span<double> out) const override {
    const double decay = std::exp(-p[1] * x);
    out[0] = decay;
    out[1] = (p[2] - p[0]) * x * decay;
    out[2] = 1 - decay;
  }

  std::vector<std::vector<double>> starts(std::span<const CurvePoint> points) const override {
    const auto basis = [](double x, const Shape& shape) { return std::exp(-shape[0] * x); };
    return starts_from(best_shapes(points, singles(rates(points, 24)), Offset::free, basis),
                       [](const Line& line, const Shape& shape) {
                         return Shape{line.offset + line.gain, shape[0], line.offset};
                       });
  }
};

}  // namespace

std::shared_ptr<const Curve> expd3() { return std::make_shared<Expd3>(); }

}  // namespace freshet::curves
