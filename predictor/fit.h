// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The training-loss predictor (Viper, section 4.3: TLP): from the losses so far to a function that says what they will
/// be.
///
/// fit() tries every family of FitOptions::families: several starts, Levenberg-Marquardt with analytic Jacobians inside
/// the parameters' bounds, a robust loss. Then it chooses one family and weighs them all. The answer, a Forecast, is a
/// pure function of the iteration with a band around it, and tells what became of each family and of the rows.
///
/// Special cases:
/// - rows that are not finite are skipped and counted; spikes are weighed down (RobustLoss);
/// - losses that rise while the run warms up, then fall: only what follows the peak is fitted (`from_iteration`);
/// - metrics that rise when things go well (accuracy): Better::higher turns "warm-up" around, formulas fit either way;
/// - losses that do not change, or too few rows for every family: the constant curve, and `note` says why. That is the
///   only fallback, and it is never taken silently.
///
/// Errors: invalid_argument when lists differ in length, an iteration does not grow (the message names the row, from
/// 1), or an option is out of range; failed_precondition when no row has a finite loss.
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

/// How much a row counts that is far off the curve, in units of the noise: all of it; less and less (huber, soft_l1);
/// hardly at all (cauchy). Fitted by reweighing (IRLS).
enum class RobustLoss { none, huber, soft_l1, cauchy };

/// The criterion that chooses the family, and weighs the families in the ensemble.
enum class Criterion {
  mse,      ///< Smallest mean squared error on the fitted rows, as in the paper. Favours families with many parameters.
  aicc,     ///< Akaike's criterion corrected for small samples: the error, and a price for each parameter.
  holdout,  ///< Smallest error on the newest rows, when fitted to the older ones. Then fitted to all.
};

enum class Better { lower, higher };

/// The answer of Forecast::operator(): the chosen family's curve, or the weighted mean of all, in which the chosen one
/// has the largest weight. CURVES.md has the measurements behind the defaults.
enum class Combine { best, ensemble };

struct FitOptions {
  CurveFamilies families = CurveFamilies::distinct();
  RobustLoss robust = RobustLoss::huber;
  Criterion criterion = Criterion::holdout;
  Combine combine = Combine::ensemble;
  Better better = Better::lower;
  /// A row at x counts (x / last x)^recency, 0 to 10: what comes next resembles what came last, and no family holds
  /// over a whole run. 0 is the paper's plain least squares.
  double recency = 1;
  std::size_t starts = 3;          ///< Most starts per family, from 1.
  std::size_t max_points = 128;    ///< Rows are merged into at most so many before fitting, from 8.
  double holdout_fraction = 0.25;  ///< Of the range of iterations, above 0, below 1.
  bool skip_warm_up = true;        ///< Leave out rows before the peak.
  /// Curves of an earlier fit: a family found here starts there and nowhere else, which is several times faster.
  std::vector<FittedCurve> warm_starts;
};

struct FamilyFit {
  FittedCurve curve;       ///< Without parameters when `problem` is set.
  double mse = 0;          ///< Weighed by rows and age, spikes as the robust loss has them.
  double aicc = 0;         ///< Infinite when there are too few points for its parameters.
  double holdout_mse = 0;  ///< Infinite when it could not be computed.
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
  /// The metric that is expected at `iteration` (under 1: at 1), as Combine says. Always finite: it leaves the values
  /// that were fitted by no more than their own range, and another range for each time that the iterations beyond are
  /// as many as the fitted ones (nothing falls faster than it did on the mean), and does not go below 0 where no value
  /// did. chosen() is the bare formula.
  double operator()(double iteration) const;
  /// Where the trend lies with the given probability (above 0, below 1): the spread of the families by their weights,
  /// and each one's own uncertainty from its Jacobian, within the limits above. Single rows scatter around the trend by
  /// noise() in addition.
  Band band(double iteration, double probability = 0.9) const;

  /// The chosen family with its parameters.
  const FittedCurve& chosen() const { return chosen_; }
  /// Every family of the options, in their order.
  const std::vector<FamilyFit>& families() const { return families_; }

  /// The standard deviation of a late row around the chosen curve, spikes not counted.
  double noise() const { return noise_; }
  double from_iteration() const { return from_iteration_; }  ///< First and last iteration that were fitted.
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
/// The same for whole lists; they are put through a LossHistory.
Result<Forecast> fit(std::span<const double> iterations, std::span<const double> losses,
                     const FitOptions& options = {});

}  // namespace freshet
