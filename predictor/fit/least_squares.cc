// SPDX-License-Identifier: Apache-2.0
#include "predictor/fit/least_squares.h"

#include <Eigen/Eigenvalues>
#include <algorithm>
#include <array>
#include <cmath>
#include <unsupported/Eigen/LevenbergMarquardt>

#include "predictor/fit/bounds.h"

namespace freshet {
namespace {

// What a row counts as when the formula leaves the doubles: finite, so that the solver sees a bad step and shortens it.
constexpr double kFar = 1e100;

double finite_or(double value, double otherwise) { return std::isfinite(value) ? value : otherwise; }

std::vector<BoundedCoordinate> coordinates_of(const Curve& family) {
  std::vector<BoundedCoordinate> coordinates;
  coordinates.reserve(family.parameters().size());
  for (const CurveParameter& parameter : family.parameters()) coordinates.emplace_back(parameter);
  return coordinates;
}

struct Problem : Eigen::DenseFunctor<double> {
  Problem(const Curve& curve, std::span<const CurvePoint> curve_points, std::span<const double> row_weights)
      : DenseFunctor(static_cast<int>(curve.parameters().size()), static_cast<int>(curve_points.size())),
        family(curve),
        points(curve_points),
        coordinates(coordinates_of(curve)) {
    roots.reserve(row_weights.size());
    for (const double weight : row_weights) roots.push_back(std::sqrt(weight));
  }

  std::span<double> place(const InputType& at) {
    for (int k = 0; k < inputs(); ++k) parameters[k] = coordinates[k].value(at[k]);
    return {parameters.data(), coordinates.size()};
  }

  int operator()(const InputType& at, ValueType& residuals) {
    const auto p = place(at);
    for (std::size_t i = 0; i < points.size(); ++i) {
      const double residual = roots[i] * (family.value(points[i].x, p) - points[i].y);
      residuals[static_cast<Eigen::Index>(i)] = std::clamp(finite_or(residual, kFar), -kFar, kFar);
    }
    return 0;
  }

  int df(const InputType& at, JacobianType& jacobian) {
    const auto p = place(at);
    std::array<double, kMaxParameters> slopes{}, row{};
    for (int k = 0; k < inputs(); ++k) slopes[k] = coordinates[k].slope(at[k]);
    for (std::size_t i = 0; i < points.size(); ++i) {
      family.gradient(points[i].x, p, {row.data(), coordinates.size()});
      for (int k = 0; k < inputs(); ++k) {
        jacobian(static_cast<Eigen::Index>(i), k) =
            std::clamp(finite_or(roots[i] * row[k] * slopes[k], 0), -kFar, kFar);
      }
    }
    return 0;
  }

  const Curve& family;
  const std::span<const CurvePoint> points;
  const std::vector<BoundedCoordinate> coordinates;
  std::vector<double> roots;
  std::array<double, kMaxParameters> parameters{};
};

}  // namespace

std::optional<Solution> least_squares(const Curve& family, std::span<const CurvePoint> points,
                                      std::span<const double> row_weights, std::span<const double> start,
                                      int max_evaluations) {
  Problem problem(family, points, row_weights);
  Eigen::VectorXd at(problem.inputs());
  for (int k = 0; k < problem.inputs(); ++k) at[k] = finite_or(problem.coordinates[k].free(start[k]), 0);
  Eigen::VectorXd residuals(problem.values());
  problem(at, residuals);
  const double cost_before = residuals.squaredNorm();
  const Eigen::VectorXd before = at;

  Eigen::LevenbergMarquardt<Problem> solver(problem);
  solver.setMaxfev(max_evaluations);
  solver.setFtol(1e-9);
  solver.setXtol(1e-9);
  solver.minimize(at);
  problem(at, residuals);
  double cost = residuals.squaredNorm();
  if (!at.allFinite() || !(cost <= cost_before)) {
    at = before;
    cost = cost_before;
  }
  if (!(cost < kFar)) return std::nullopt;
  const auto parameters = problem.place(at);
  return Solution{.parameters = {parameters.begin(), parameters.end()}, .cost = cost};
}

std::vector<double> inverse_information(const Curve& family, std::span<const CurvePoint> points,
                                        std::span<const double> row_weights, std::span<const double> parameters) {
  Problem problem(family, points, row_weights);
  const int n = problem.inputs();
  Eigen::VectorXd at(n), slopes(n);
  for (int k = 0; k < n; ++k) {
    at[k] = problem.coordinates[k].free(parameters[k]);
    slopes[k] = problem.coordinates[k].slope(at[k]);
  }
  Eigen::MatrixXd jacobian(problem.values(), n);
  problem.df(at, jacobian);
  Eigen::VectorXd scale = jacobian.colwise().norm();
  for (int k = 0; k < n; ++k) scale[k] = scale[k] > 0 ? 1 / scale[k] : 0;
  // Columns of length 1 make the information a matrix of correlations: what is small there is truly undetermined.
  const Eigen::MatrixXd scaled = jacobian * scale.asDiagonal();
  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> eigen(scaled.transpose() * scaled);
  Eigen::VectorXd inverse = eigen.eigenvalues();
  for (int k = 0; k < n; ++k) inverse[k] = inverse[k] > 1e-10 ? 1 / inverse[k] : 0;
  const Eigen::VectorXd outer = scale.cwiseProduct(slopes);
  const Eigen::MatrixXd covariance = outer.asDiagonal() * eigen.eigenvectors() * inverse.asDiagonal() *
                                     eigen.eigenvectors().transpose() * outer.asDiagonal();
  std::vector<double> rows(static_cast<std::size_t>(n) * static_cast<std::size_t>(n));
  for (int i = 0; i < n; ++i) {
    for (int k = 0; k < n; ++k) rows[static_cast<std::size_t>(i * n + k)] = finite_or(covariance(i, k), 0);
  }
  return rows;
}

}  // namespace freshet
