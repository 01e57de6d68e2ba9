// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Learning curves that are made, not recorded: each has one difficulty of its own, known exactly.

#include <vector>

#include "benchmarks/schedules/learning_curve.h"

namespace freshet::benchmarks {

/// Six curves of 4000 rows, the same on every machine:
/// - synthetic_clean: a decaying exponential, and no noise;
/// - synthetic_noise: a power law whose batches scatter by a fifth of the loss;
/// - synthetic_spikes: one row in a hundred is several times as high, and the versions of the rows after it suffer too;
/// - synthetic_plateau: nothing improves for a third of the run, then the loss drops;
/// - synthetic_restarts: cosine warm restarts: the loss jumps up every 800 rows, and comes back lower;
/// - synthetic_power: a slow power law, that improves to the end.
std::vector<LearningCurve> synthetic_curves();

}  // namespace freshet::benchmarks
