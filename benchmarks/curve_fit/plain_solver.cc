// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/curve_fit/plain_solver.h"

#include <algorithm>
#include <limits>
#include <unsupported/Eigen/LevenbergMarquardt>
#include <vector>

namespace freshet::benchmarks {
namespace {

struct Residuals : Eigen::DenseFunctor<double> {
  Residuals(const Curve& curve, std::span<const CurvePoint> points)
      : DenseFunctor(static_cast<int>(curve.parameters().size()), static_cast<int>(points.size())),
        family(curve),
        rows(points) {}

  std::vector<double> inside(const InputType& at) const {
    std::vector<double> values(at.data(), at.data() + at.size());
    for (std::size_t k = 0; k < values.size(); ++k) {
      const CurveParameter& parameter = family.parameters()[k];
      values[k] = std::clamp(values[k], parameter.lower, parameter.upper);
    }
    return values;
  }

  int operator()(const InputType& at, ValueType& residuals) const {
    const auto p = inside(at);
    for (int i = 0; i < values(); ++i) {
      const CurvePoint& row = rows[static_cast<std::size_t>(i)];
      residuals[i] = family.value(row.x, p) - row.y;
    }
    return residuals.allFinite() ? 0 : -1;
  }

  int df(const InputType& at, JacobianType& jacobian) const {
    const auto p = inside(at);
    std::vector<double> gradient(p.size());
    for (int i = 0; i < values(); ++i) {
      family.gradient(rows[static_cast<std::size_t>(i)].x, p, gradient);
      for (int k = 0; k < inputs(); ++k) jacobian(i, k) = gradient[static_cast<std::size_t>(k)];
    }
    return jacobian.allFinite() ? 0 : -1;
  }

  const Curve& family;
  const std::span<const CurvePoint> rows;
};

}  // namespace

FittedCurve plain_fit(const CurveFamilies& families, std::span<const CurvePoint> rows) {
  FittedCurve best;
  double least = std::numeric_limits<double>::infinity();
  for (const auto& family : families.list()) {
    const auto starts = family->starts(rows);
    if (starts.empty()) continue;
    Residuals residuals(*family, rows);
    Eigen::VectorXd at = Eigen::Map<const Eigen::VectorXd>(starts[0].data(), residuals.inputs());
    Eigen::LevenbergMarquardt<Residuals> solver(residuals);
    solver.minimize(at);
    Eigen::VectorXd values(residuals.values());
    if (residuals(at, values) < 0 || !(values.squaredNorm() < least)) continue;
    least = values.squaredNorm();
    best = {.family = family, .parameters = residuals.inside(at)};
  }
  return best;
}

}  // namespace freshet::benchmarks
