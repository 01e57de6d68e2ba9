// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A learning curve with the prices of publishing it: what each schedule is judged on.

#include <string>
#include <vector>

#include "benchmarks/schedules/learning_curve.h"
#include "predictor/timing.h"

namespace freshet::benchmarks {

enum class Group {
  tuned_on,   ///< Recorded, even index in the sorted order of the files: `online` may have been tuned on these.
  held_back,  ///< Recorded, the others.
  synthetic,
};

struct Case {
  std::string name;  ///< "digits_mlp cheap"
  Group group = Group::synthetic;
  bool overfits = false;  ///< Its held-out loss rises while the training loss falls, which nobody is told.
  std::vector<double> loss;
  std::vector<double> trend;  ///< The cost of each row's version: trend_of() the eval losses.
  ReplayClock clock;
  std::int64_t epoch_rows = 0;
};

/// What publishing takes, in steps.
struct Price {
  const char* name;
  double stall_steps;
  double delivery_steps;
};
inline constexpr Price kCheap{"cheap", 0.2, 0.3};
inline constexpr Price kDear{"dear", 20, 20};

inline constexpr std::size_t kTrendRows = 51;

/// The first tenth of the rows is the warm-up, an epoch is a sixteenth of the others (Viper's TC1 has 16), a step takes
/// 10 ms, and about three requests come in it, until the last version of the epoch schedule is served.
Result<Case> make_case(const LearningCurve& curve, Group group, const Price& price);

/// Every curve with either price: the recorded ones in the files' order, then the synthetic ones. `recorded` is sorted.
Result<std::vector<Case>> make_cases(const std::vector<LearningCurve>& recorded,
                                     const std::vector<LearningCurve>& synthetic);

}  // namespace freshet::benchmarks
