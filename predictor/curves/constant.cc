// SPDX-License-Identifier: Apache-2.0
#include "predictor/curves/families.h"
#include "predictor/curves/shapes.h"

/// a: the metric stays as it is (LAST1 of Viering and Loog, 2022, but with the best level, not the last value). It is
/// the curve that fit() falls back to, and the answer to a plateau.
///   d/da = 1

namespace freshet::curves {
namespace {

class Constant final : public Family {
 public:
  Constant() : Family("constant", "a", {{.name = "a"}}) {}

  double value(double /*x*/, std::span<const double> p) const override { return p[0]; }
  void gradient(double /*x*/, std::span<const double> /*p*/, std::span<double> out) const override { out[0] = 1; }

  std::vector<std::vector<double>> starts(std::span<const CurvePoint> points) const override {
    double sum = 0, weights = 0;
    for (const CurvePoint& point : points) {
      sum += point.weight * point.y;
      weights += point.weight;
    }
    return {{sum / weights}};
  }
};

}  // namespace

std::shared_ptr<const Curve> constant() { return std::make_shared<Constant>(); }

}  // namespace freshet::curves
