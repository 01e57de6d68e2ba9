// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The predictor of training losses (Viper, section 4.3: TLP). It fits learning curves to the losses so far, and
/// forecasts the losses to come.
///
/// fit() fits every family of FitOptions::families by Levenberg-Marquardt with analytic Jacobians: from several starts,
/// inside the parameters' bounds, with a robust loss. Then it chooses one family, and gives each family a weight. The
/// result is a Forecast: a function of the iteration with a band. It also reports each family and the skipped rows.
///
/// Special cases:
/// - Rows with a loss that is not finite are skipped and counted. Spikes get less weight (RobustLoss).
/// - If losses first rise during a warm-up, fit() fits only the rows after the peak (`from_iteration`).
/// - A metric that should rise (accuracy) needs Better::higher. The warm-up then ends at the lowest row.
/// - If all losses are equal, or no family can be fitted (for example, there are too few rows), the forecast is a
///   constant, and `note` has the reason. This is the only fallback.
///
/// Errors: invalid_argument: the lists differ in length, an iteration does not grow (the message names the row, from
/// 1), or an option is out of range. failed_precondition: no row has a finite loss.
///
/// Thread rule: fit() is a pure function, from any thread. Forecast is immutable. Nothing here reads a clock.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "predictor/curves/curve.h"
#include "predictor/loss_history.h"

namespace freshet {

/// The weight of a row far from the curve. The unit of the distance is the noise. none: the full weight. huber and
/// soft_l1: less with the distance. cauchy: almost none. Fitted by reweighing (IRLS).
enum class RobustLoss { none, huber, soft_l1, cauchy };

/// The criterion that chooses the family, and weighs the families in the ensemble.
enum class Criterion {
  mse,      ///< Smallest mean squared error on the fitted rows, as in the paper. Favours families with many parameters.
  aicc,     ///< Akaike's criterion, corrected for small samples: the error, plus a penalty for each parameter.
  holdout,  ///< Smallest error on the newest rows after a fit to the older rows. A second fit then takes all rows.
};

enum class Better { lower, higher };

/// The answer of Forecast::operator(): the chosen family's curve, or the weighted mean of all, in which the chosen one
/// has the largest weight. CURVES.md has the measurements that led to the defaults.
enum class Combine { best, ensemble };

struct FitOptions {
  CurveFamilies families = CurveFamilies::distinct();
  RobustLoss robust = RobustLoss::huber;
  Criterion criterion = Criterion::holdout;
  Combine combine = Combine::ensemble;
  Better better = Better::lower;
  /// A row at x has the weight (x / last x)^recency; `recency` is from 0 to 10. Late rows predict the next losses
  /// better than early rows, because no family fits a whole run. 0: the paper's plain least squares.
  double recency = 1;
  std::size_t starts = 3;          ///< Most starts per family, from 1.
  std::size_t max_points = 128;    ///< Before the fit, rows are merged into at most this many points, from 8.
  double holdout_fraction = 0.25;  ///< Share of the range of iterations, above 0, below 1.
  bool skip_warm_up = true;        ///< Leave out rows before the peak.
  /// Curves of an earlier fit. A family of this list has its curve as the only start; this is several times faster.
  std::vector<FittedCurve> warm_starts;
};

struct FamilyFit {
  FittedCurve curve;  ///< Without parameters when `problem` is set.
  double mse = 0;     ///< Each point has a weight: its number of rows, times (x / last x)^FitOptions::recency. Spikes
                      ///< have the lower weight of the robust loss.
  double aicc = 0;    ///< Infinite when there are too few points for its parameters.
  double holdout_mse = 0;  ///< Infinite when it could not be computed, and with another criterion than holdout.
  double weight = 0;       ///< In the ensemble; they sum up to 1.
  std::string problem;     ///< The reason why it could not be fitted; empty if it was fitted.
};

struct Band {
  double lower = 0;
  double middle = 0;
  double upper = 0;
};

class Forecast {
 public:
  /// The expected metric at `iteration` (below 1: at 1), by Combine. Always finite. Let R be the greatest fitted value
  /// minus the least one. Up to the last fitted iteration, the forecast is at most R below the least fitted value, and
  /// at most R above the greatest one. Beyond the last fitted iteration the limits widen linearly: if the fit covers n
  /// iterations, by R for every n further ones. The forecast is not below 0 unless a fitted value was. chosen()
  /// has no such limits.
  double operator()(double iteration) const;
  /// A band that contains the trend with the given probability (above 0, below 1). It combines the families' spread,
  /// by their weights, with the uncertainty of each family from its Jacobian, within the limits above. Single rows
  /// scatter around the trend by noise() in addition.
  Band band(double iteration, double probability = 0.9) const;

  /// The chosen family with its parameters.
  const FittedCurve& chosen() const { return chosen_; }
  /// Every family of the options, in their order. Empty if all losses are equal.
  const std::vector<FamilyFit>& families() const { return families_; }

  /// The standard deviation of a late row around the chosen curve, spikes not counted.
  double noise() const { return noise_; }
  /// The iterations of the first and of the last fitted point. A point of merged rows has the mean of their iterations,
  /// so to_iteration() may be somewhat before the last row.
  double from_iteration() const { return from_iteration_; }
  double to_iteration() const { return to_iteration_; }
  std::uint64_t rows() const { return rows_; }        ///< Taken, the skipped ones not counted.
  std::uint64_t skipped() const { return skipped_; }  ///< Not finite.
  bool is_fallback() const { return !note_.empty(); }
  /// The reason for the constant curve; empty if another curve was chosen.
  const std::string& note() const { return note_; }

 private:
  friend class Fitter;
  struct Member {
    FittedCurve curve;
    double weight = 0;
    std::vector<double> covariance;  // Of the parameters, row by row.
  };

  struct Limits {
    double least = 0;
    double most = 0;
  };

  Limits limits_at(double iteration) const;
  double plausible(const FittedCurve& curve, double iteration) const;

  FittedCurve chosen_;
  std::vector<FamilyFit> families_;
  std::vector<Member> members_;
  Combine combine_ = Combine::best;
  double least_ = 0;  // Of the fitted values, spikes not counted.
  double most_ = 0;
  double noise_ = 0;
  double from_iteration_ = 1;
  double to_iteration_ = 1;
  std::uint64_t rows_ = 0;
  std::uint64_t skipped_ = 0;
  std::string note_;
};

Result<Forecast> fit(const LossHistory& history, const FitOptions& options = {});
/// The same for whole lists, through a LossHistory.
Result<Forecast> fit(std::span<const double> iterations, std::span<const double> losses,
                     const FitOptions& options = {});

}  // namespace freshet
