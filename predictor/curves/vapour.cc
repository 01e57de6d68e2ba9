// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "predictor/curves/families.h"
#include "predictor/curves/shapes.h"

/// exp(a + b / x + c ln x): vapour pressure. Domhan et al. (2015), table 1; VAP3 of Viering and Loog (2022). Late, it
/// is the power x^c, so for a loss that falls c < 0, and it goes to 0. Only values above 0. With f the value:  d/da = f
/// d/db = f / x    d/dc = f ln x Start: its logarithm is linear in a, b and c; for each c of a grid, a and b by linear
/// least squares on ln y.

namespace freshet::curves {
namespace {

class Vapour final : public Family {
 public:
  Vapour()
      : Family("vapour", "exp(a + b / x + c ln x)",
               {{.name = "a", .lower = -600, .upper = 600},
                {.name = "b", .lower = -600, .upper = 600},
                {.name = "c", .lower = -10, .upper = 2}}) {}

  double value(double x, std::span<const double> p) const override {
    return std::exp(p[0] + p[1] / x + p[2] * std::log(x));
  }

  void gradient(double x, std::span<const double> p, std::span<double> out) const override {
    const double f = value(x, p);
    out[0] = f;
    out[1] = f / x;
    out[2] = f * std::log(x);
  }

  std::vector<std::vector<double>> starts(std::span<const CurvePoint> points) const override {
    if (std::any_of(points.begin(), points.end(), [](const CurvePoint& p) { return p.y <= 0; })) return {};
    struct Guess {
      Line line;
      double c = 0;
    };
    std::vector<Guess> guesses;
    std::vector<CurvePoint> logarithms(points.begin(), points.end());
    std::vector<double> basis;
    basis.reserve(points.size());
    for (const CurvePoint& point : points) basis.push_back(1 / point.x);
    for (const double c : {-2.0, -1.0, -0.5, -0.25, -0.1, -0.03, 0.0, 0.1, 0.3}) {
      for (std::size_t i = 0; i < points.size(); ++i)
        logarithms[i].y = std::log(points[i].y) - c * std::log(points[i].x);
      guesses.push_back({.line = fit_line(logarithms, basis, Offset::free), .c = c});
    }
    std::stable_sort(guesses.begin(), guesses.end(),
                     [](const Guess& a, const Guess& b) { return a.line.error < b.line.error; });
    std::vector<std::vector<double>> starts;
    for (const Guess& guess : guesses) starts.push_back({guess.line.offset, guess.line.gain, guess.c});
    return starts;
  }
};

}  // namespace

std::shared_ptr<const Curve> vapour() { return std::make_shared<Vapour>(); }

}  // namespace freshet::curves
