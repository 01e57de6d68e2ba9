// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "benchmarks/checkpoint/options.h"
#include "benchmarks/common/report.h"
#include "core/base/result.h"

namespace freshet::benchmarks {

/// Measures how long a checkpoint blocks the loop of one rank, in two ways. `whole_blocked`: the loop captures all
/// layers after the last layer's update. `layers_blocked`: the loop hands over each layer after the layer's update, and
/// a thread of the checkpointer copies the layer while the next one computes. A layer computes for four times as long
/// as its copy takes. `step_alone` is a step without a checkpoint, `layers_step` a step with the second kind, in all.
Status measure_layers(const CheckpointOptions& options, Report& report);

}  // namespace freshet::benchmarks
