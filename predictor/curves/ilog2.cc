// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "predictor/curves/families.h"
#include "predictor/curves/shapes.h"

/// a / ln(x + 1) + c: an inverse logarithm, which goes to c slower than any power. Domhan et al. (2015), table 1, print
/// c - a / log x, which has a pole at x = 1; the shift by one iteration takes it out of the way.
///   d/da = 1 / ln(x + 1)    d/dc = 1
/// Start: linear least squares.

namespace freshet::curves {
namespace {

class Ilog2 final : public Family {
 public:
  Ilog2() : Family("ilog2", "a / ln(x + 1) + c", {{.name = "a"}, {.name = "c"}}) {}

  double value(double x, std::span<const double> p) const override { return p[0] / std::log1p(x) + p[1]; }

  void gradient(double x, std::span<const double> /*p*/, std::span<double> out) const override {
    out[0] = 1 / std::log1p(x);
    out[1] = 1;
  }

  std::vector<std::vector<double>> starts(std::span<const CurvePoint> points) const override {
    std::vector<double> basis;
    basis.reserve(points.size());
    for (const CurvePoint& point : points) basis.push_back(1 / std::log1p(point.x));
    const Line line = fit_line(points, basis, Offset::free);
    return {{line.gain, line.offset}};
  }
};

}  // namespace

std::shared_ptr<const Curve> ilog2() { return std::make_shared<Ilog2>(); }

}  // namespace freshet::curves
