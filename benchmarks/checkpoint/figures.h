// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "benchmarks/checkpoint/options.h"
#include "benchmarks/common/report.h"
#include "core/base/result.h"

namespace freshet::benchmarks {

/// What DeepFreeze's Figures 5 and 6 compare, for the three models: for how long a checkpoint blocks, and how much
/// longer an iteration takes for it, with one rank that writes a file, one rank that checkpoints alone, shards of all
/// ranks, and shards that each layer is captured for when its update is done.
Status measure_figures(const CheckpointOptions& options, Report& report);

}  // namespace freshet::benchmarks
