// SPDX-License-Identifier: Apache-2.0
#include "predictor/fit.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "core/base/format.h"
#include "predictor/curves/families.h"
#include "predictor/fit/fitter.h"
#include "predictor/fit/least_squares.h"
#include "predictor/fit/points.h"
#include "predictor/fit/scatter.h"

namespace freshet {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::size_t kFewest = 8;  // Points after a peak without which the peak is not taken for a warm-up.

Status check(const FitOptions& options) {
  const auto refuse = [](std::string what) { return fail(Code::invalid_argument, "fit: " + std::move(what)); };
  if (options.families.list().empty()) return refuse("no curve families");
  if (options.starts < 1) return refuse("starts must be at least 1");
  if (options.max_points < 8) return refuse(format("max_points is {}, at least 8 are needed", options.max_points));
  if (!(options.holdout_fraction > 0 && options.holdout_fraction < 1)) {
    return refuse(format("holdout_fraction is {}, must be between 0 and 1", options.holdout_fraction));
  }
  if (!(options.recency >= 0 && options.recency <= 10)) {
    return refuse(format("recency is {}, must be between 0 and 10", options.recency));
  }
  return {};
}

// Where the falling part begins: the highest of the values that are smoothed over seven points, when it stands clearly
// above the beginning, lies in the first half, and leaves enough to fit.
std::size_t end_of_warm_up(std::span<const CurvePoint> points, double noise, Better better) {
  if (points.size() < 2 * kFewest) return 0;
  const std::vector<double> residuals = median_residuals(points);
  const double sign = better == Better::lower ? 1 : -1;
  const auto height = [&](std::size_t i) { return sign * (points[i].y - residuals[i]); };
  std::size_t peak = 0;
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (height(i) > height(peak)) peak = i;
  }
  const double middle = (points.front().x + points.back().x) / 2;
  if (peak == 0 || points[peak].x > middle || points.size() - peak < kFewest) return 0;
  const double start = height(std::min<std::size_t>(3, peak));
  return height(peak) - start > 3 * noise ? peak : 0;
}

double clean_mse(const Curve& family, std::span<const double> parameters, std::span<const CurvePoint> points) {
  double sum = 0, weights = 0;
  for (const CurvePoint& point : points) {
    const double residual = family.value(point.x, parameters) - point.y;
    sum += point.weight * residual * residual;
    weights += point.weight;
  }
  const double mean = sum / weights;
  return std::isfinite(mean) ? mean : kInfinity;
}

double robust_mse(const Curve& family, std::span<const double> parameters, std::span<const CurvePoint> points,
                  RobustLoss loss, double scale) {
  double sum = 0, weights = 0;
  for (const CurvePoint& point : points) {
    const double size = std::abs(family.value(point.x, parameters) - point.y) * std::sqrt(point.weight);
    sum += scale > 0 ? scale * scale * robust_square(loss, size / scale) : size * size;
    weights += point.weight;
  }
  return sum / weights;
}

double aicc(double mse, double level, std::size_t points, std::size_t parameters) {
  const auto n = static_cast<double>(points);
  const auto k = static_cast<double>(parameters + 1);  // The noise is one too.
  if (n - k - 1 <= 0) return kInfinity;
  // An error below rounding is no evidence.
  const double least = std::max(1e-300, 1e-28 * level * level);
  return n * std::log(std::max(mse, least)) + 2 * k + 2 * k * (k + 1) / (n - k - 1);
}

}  // namespace

/// Builds one Forecast.
class Fitter {
 public:
  Fitter(const LossHistory& history, const FitOptions& options) : history_(history), options_(options) {
    forecast_.combine_ = options.combine;
    forecast_.rows_ = history.rows();
    forecast_.skipped_ = history.skipped();
    sample_ = Sample::of(merged(history.points(), options.max_points));
    const std::size_t from = options.skip_warm_up ? end_of_warm_up(sample_.points, sample_.noise, options.better) : 0;
    if (from > 0) {
      const auto rest = std::span(sample_.points).subspan(from);
      sample_ = Sample::of({rest.begin(), rest.end()});
    }
    sample_.weigh_by_age(options.recency);
    forecast_.from_iteration_ = sample_.points.front().x;
    forecast_.to_iteration_ = sample_.points.back().x;
  }

  Forecast run() {
    const auto [least, most] = std::minmax_element(sample_.points.begin(), sample_.points.end(),
                                                   [](const auto& a, const auto& b) { return a.y < b.y; });
    note_range();
    if (least->y == most->y) return fall_back(format("all {} points are {}", sample_.points.size(), least->y));
    fit_all();
    if (std::none_of(fits_.begin(), fits_.end(), [](const auto& fitted) { return fitted.has_value(); })) {
      const FamilyFit& first = forecast_.families_.front();
      return fall_back(format("no family could be fitted; {}: {}", first.curve.name(), first.problem));
    }
    score();
    weigh();
    return std::move(forecast_);
  }

 private:
  const std::vector<double>* warm_start(const Curve& family) const {
    for (const FittedCurve& curve : options_.warm_starts) {
      if (curve.family && curve.name() == family.name() && curve.parameters.size() == family.parameters().size()) {
        return &curve.parameters;
      }
    }
    return nullptr;
  }

  void note_range() {
    const auto [least, most] = std::minmax_element(sample_.clean.begin(), sample_.clean.end(),
                                                   [](const auto& a, const auto& b) { return a.y < b.y; });
    forecast_.least_ = least->y;
    forecast_.most_ = most->y;
  }

  void fit_all() {
    for (const auto& family : options_.families.list()) {
      FamilyFit fit{.curve = {.family = family, .parameters = {}},
                    .mse = kInfinity,
                    .aicc = kInfinity,
                    .holdout_mse = kInfinity,
                    .weight = 0,
                    .problem = {}};
      auto fitted = fit_family(*family, sample_, options_, warm_start(*family));
      if (fitted) {
        fit.curve.parameters = fitted->parameters;
        fits_.emplace_back(std::move(*fitted));
      } else {
        fit.problem = fitted.error().message();
        fits_.emplace_back();
      }
      forecast_.families_.push_back(std::move(fit));
    }
  }

  // The errors of all families are measured against one scale, that of the best: each against its own would reward a
  // family that takes half of the rows for outliers.
  void score() {
    scale_ = kInfinity;
    for (const auto& fitted : fits_) scale_ = fitted ? std::min(scale_, fitted->scale) : scale_;
    double level = 0;
    for (const CurvePoint& point : sample_.points) level = std::max(level, std::abs(point.y));
    for (std::size_t i = 0; i < fits_.size(); ++i) {
      if (!fits_[i]) continue;
      FamilyFit& fit = forecast_.families_[i];
      const Curve& family = *fit.curve.family;
      fit.mse = robust_mse(family, fit.curve.parameters, sample_.points, options_.robust, scale_);
      fit.aicc = aicc(fit.mse, level, sample_.points.size(), family.parameters().size());
      if (options_.criterion == Criterion::holdout) fit.holdout_mse = holdout(family, fit.curve.parameters);
    }
  }

  double holdout(const Curve& family, const std::vector<double>& parameters) const {
    const auto& points = sample_.points;
    const double edge = points.back().x - options_.holdout_fraction * (points.back().x - points.front().x);
    const auto split = static_cast<std::size_t>(
        std::partition_point(points.begin(), points.end(), [&](const auto& point) { return point.x <= edge; }) -
        points.begin());
    if (split == points.size()) return kInfinity;
    const auto fitted = fit_family(family, sample_.first(split), options_, &parameters);
    if (!fitted) return kInfinity;
    return clean_mse(family, fitted->parameters, std::span(sample_.clean).subspan(split));
  }

  double score_of(const FamilyFit& fit) const {
    switch (options_.criterion) {
      case Criterion::mse: return fit.mse;
      case Criterion::aicc: return fit.aicc;
      case Criterion::holdout: return fit.holdout_mse;
    }
    return fit.mse;
  }

  void weigh() {
    auto& families = forecast_.families_;
    std::size_t best = families.size();
    for (std::size_t i = 0; i < families.size(); ++i) {
      if (!fits_[i]) continue;
      const bool first = best == families.size();
      const double ours = first ? 0 : score_of(families[i]), theirs = first ? 0 : score_of(families[best]);
      // Where the criterion says nothing of either (too few points), the error decides.
      if (first || ours < theirs || (ours == theirs && families[i].mse < families[best].mse)) best = i;
    }
    double sum = 0;
    for (std::size_t i = 0; i < families.size(); ++i) {
      if (fits_[i]) sum += families[i].weight = i == best ? 1 : relative_weight(families[i], families[best]);
    }
    for (std::size_t i = 0; i < families.size(); ++i) {
      if (!fits_[i]) continue;
      families[i].weight /= sum;
      add_member(i);
    }
    forecast_.chosen_ = families[best].curve;
    forecast_.noise_ = scatter_around(forecast_.chosen_);
  }

  // By Akaike's weights; by the likelihood; and for what was held out, where errors are those of predictions and not of
  // rows that scatter, simply by the error. Sharper weights predict no better, and make the band too narrow
  // (CURVES.md).
  double relative_weight(const FamilyFit& fit, const FamilyFit& best) const {
    if (!std::isfinite(score_of(fit))) return 0;
    if (options_.criterion == Criterion::aicc) return std::exp((best.aicc - fit.aicc) / 2);
    const double ratio = score_of(best) / score_of(fit);
    if (!std::isfinite(ratio)) return 0;
    return options_.criterion == Criterion::mse ? std::pow(ratio, static_cast<double>(sample_.points.size()) / 2)
                                                : ratio;
  }

  void add_member(std::size_t i) {
    const FamilyFit& fit = forecast_.families_[i];
    auto covariance =
        inverse_information(*fit.curve.family, sample_.points, fits_[i]->row_weights, fit.curve.parameters);
    for (double& entry : covariance) entry *= fits_[i]->scale * fits_[i]->scale;
    forecast_.members_.push_back({.curve = fit.curve, .weight = fit.weight, .covariance = std::move(covariance)});
  }

  Forecast fall_back(std::string why) {
    const auto family = curves::constant();
    forecast_.note_ = std::move(why);
    forecast_.chosen_ = {.family = family, .parameters = family->starts(sample_.clean).front()};
    forecast_.noise_ = scatter_around(forecast_.chosen_);
    forecast_.members_ = {{.curve = forecast_.chosen_,
                           .weight = 1,
                           .covariance = {sample_.noise * sample_.noise / static_cast<double>(forecast_.rows_)}}};
    return std::move(forecast_);
  }

  double scatter_around(const FittedCurve& curve) const {
    const auto& points = history_.points();
    const auto from = std::partition_point(points.begin(), points.end(),
                                           [&](const auto& point) { return point.x < forecast_.from_iteration_; });
    return row_scatter({from, points.end()}, curve);
  }

  const LossHistory& history_;
  const FitOptions& options_;
  Sample sample_;
  std::vector<std::optional<RobustFit>> fits_;  // Of each family.
  double scale_ = 0;
  Forecast forecast_;
};

Result<Forecast> fit(const LossHistory& history, const FitOptions& options) {
  FRESHET_TRY(check(options));
  if (history.rows() == 0) {
    return fail(Code::failed_precondition, format("fit: no row has a finite loss ({} skipped)", history.skipped()));
  }
  return Fitter(history, options).run();
}

Result<Forecast> fit(std::span<const double> iterations, std::span<const double> losses, const FitOptions& options) {
  if (iterations.size() != losses.size()) {
    return fail(Code::invalid_argument,
                format("fit: {} iterations were given for {} losses", iterations.size(), losses.size()));
  }
  LossHistory history;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    if (auto added = history.add(iterations[i], losses[i]); !added) {
      return fail(std::move(added).error().with_context(format("fit: row {}", i + 1)));
    }
  }
  return fit(history, options);
}

}  // namespace freshet
