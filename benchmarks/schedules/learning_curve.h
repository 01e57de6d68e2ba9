// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The recorded losses of a training run, and what benchmarks make of them.

#include <span>
#include <string>
#include <vector>

#include "core/base/result.h"

namespace freshet::benchmarks {

struct LearningCurve {
  std::string name;               ///< The file's, without `.csv`.
  std::vector<double> loss;       ///< Of row 1…L: the step's batch. NaN where there is none.
  std::vector<double> eval_loss;  ///< Of the version after that step, on held-out data.
};

/// A file with the columns `step,loss,eval_loss`. not_found, or invalid_argument naming the line: steps must count from
/// 1 and eval_loss be finite.
Result<LearningCurve> read_curve(const std::string& path);

/// Every `.csv` of the folder, sorted by name. not_found when there is none.
Result<std::vector<LearningCurve>> read_curves(const std::string& folder);

/// The mean of the `width` values about each one (of fewer where the list ends). REQUIRES: width is odd.
std::vector<double> centred_mean(std::span<const double> values, std::size_t width);

/// As centred_mean(), but no mean goes across a jump: a row where the median of the width / 2 values from there on is
/// above that of as many before by more than five usual scatters. What is lucky in a single row is gone, so no schedule
/// gains by having picked it; and a jump of the loss is not charged to the versions before it. REQUIRES: width is odd,
/// all values are finite.
std::vector<double> trend_of(std::span<const double> values, std::size_t width);

}  // namespace freshet::benchmarks
