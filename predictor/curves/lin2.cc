// SPDX-License-Identifier: Apache-2.0
#include "predictor/curves/families.h"
#include "predictor/curves/shapes.h"

/// a x + b: a straight line. Viper, section 4.3, prints it so; Viering and Loog (2022) have -a x + b, the same lines.
///   d/da = x    d/db = 1
/// Start: linear least squares, which is already the answer but for the robust loss.

namespace freshet::curves {
namespace {

class Lin2 final : public Family {
 public:
  Lin2() : Family("lin2", "a x + b", {{.name = "a"}, {.name = "b"}}) {}

  double value(double x, std::span<const double> p) const override { return p[0] * x + p[1]; }

  void gradient(double x, std::span<const double> /*p*/, std::span<double> out) const override {
    out[0] = x;
    out[1] = 1;
  }

  std::vector<std::vector<double>> starts(std::span<const CurvePoint> points) const override {
    std::vector<double> basis;
    basis.reserve(points.size());
    for (const CurvePoint& point : points) basis.push_back(point.x);
    const Line line = fit_line(points, basis, Offset::free);
    return {{line.gain, line.offset}};
  }
};

}  // namespace

std::shared_ptr<const Curve> lin2() { return std::make_shared<Lin2>(); }

}  // namespace freshet::curves
