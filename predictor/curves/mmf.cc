// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "predictor/curves/families.h"
#include "predictor/curves/shapes.h"

/// a - (a - b) / (1 + (k x)^d): the growth curve of Morgan, Mercer and Flodin (1975), from b (at x = 0) to a, with a
/// power law's tail. Domhan et al. (2015), table 1; MMF4 of Viering and Loog (2022). With w = (k x)^d, s = 1 / (1 + w):
///   d/da = 1 - s    d/db = s    d/dk = (a - b) d s (1 - s) / k    d/dd = (a - b) ln(k x) s (1 - s)
/// since w / (1 + w)^2 = s (1 - s).
/// Start: a grid of k and d, a and b by linear least squares.

namespace freshet::curves {
namespace {

class Mmf final : public Family {
 public:
  Mmf()
      : Family("mmf", "a - (a - b) / (1 + (k x)^d)",
               {{.name = "a"}, {.name = "b"}, rate_parameter("k"), stretch_parameter("d")}) {}

  double value(double x, std::span<const double> p) const override {
    return p[0] - (p[0] - p[1]) / (1 + std::pow(p[2] * x, p[3]));
  }

  void gradient(double x, std::span<const double> p, std::span<double> out) const override {
    const double s = 1 / (1 + std::pow(p[2] * x, p[3]));
    const double product = (p[0] - p[1]) * s * (1 - s);
    out[0] = 1 - s;
    out[1] = s;
    out[2] = product * p[3] / p[2];
    out[3] = product * std::log(p[2] * x);
  }

  std::vector<std::vector<double>> starts(std::span<const CurvePoint> points) const override {
    const auto basis = [](double x, const Shape& shape) { return 1 / (1 + std::pow(shape[0] * x, shape[1])); };
    const auto grid = pairs(rates(points, 12), Shape{0.2, 0.4, 0.7, 1, 1.5, 3});
    return starts_from(best_shapes(points, grid, Offset::free, basis), [](const Line& line, const Shape& shape) {
      return Shape{line.offset, line.offset + line.gain, shape[0], shape[1]};
    });
  }
};

}  // namespace

std::shared_ptr<const Curve> mmf() { return std::make_shared<Mmf>(); }

}  // namespace freshet::curves
