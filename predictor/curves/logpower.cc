// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "predictor/curves/families.h"
#include "predictor/curves/shapes.h"

/// a / (1 + (x / e^b)^c): log-power, a logistic function of ln x. Domhan et al. (2015), table 1, for accuracies that
/// rise to a (c < 0); with c > 0 it falls from a to 0. With s = 1 / (1 + exp(u)), u = c (ln x - b):
///   d/da = s    d/db = a c s (1 - s)    d/dc = -a (ln x - b) s (1 - s)
/// Start: a grid of b and c, a by linear least squares.

namespace freshet::curves {
namespace {

double logistic(double u) { return 1 / (1 + std::exp(u)); }

class LogPower final : public Family {
 public:
  LogPower()
      : Family("logpower", "a / (1 + (x / e^b)^c)",
               {{.name = "a"}, {.name = "b", .lower = -30, .upper = 60}, {.name = "c", .lower = -10, .upper = 10}}) {}

  double value(double x, std::span<const double> p) const override {
    return p[0] * logistic(p[2] * (std::log(x) - p[1]));
  }

  void gradient(double x, std::span<const double> p, std::span<double> out) const override {
    const double distance = std::log(x) - p[1];
    const double s = logistic(p[2] * distance);
    const double slope = s * (1 - s);
    out[0] = s;
    out[1] = p[0] * p[2] * slope;
    out[2] = -p[0] * distance * slope;
  }

  std::vector<std::vector<double>> starts(std::span<const CurvePoint> points) const override {
    const auto basis = [](double x, const Shape& shape) { return logistic(shape[1] * (std::log(x) - shape[0])); };
    const double last = std::log(std::max(2.0, points.back().x));
    Shape middles;
    for (const double part : {-0.5, 0.0, 0.25, 0.5, 0.75, 1.0, 1.5}) middles.push_back(part * last);
    const auto grid = pairs(middles, Shape{-3, -1.5, -0.7, -0.3, 0.15, 0.3, 0.7, 1.5, 3});
    return starts_from(best_shapes(points, grid, Offset::zero, basis), [](const Line& line, const Shape& shape) {
      return Shape{line.gain, shape[0], shape[1]};
    });
  }
};

}  // namespace

std::shared_ptr<const Curve> logpower() { return std::make_shared<LogPower>(); }

}  // namespace freshet::curves
