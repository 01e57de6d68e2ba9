// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "benchmarks/checkpoint/options.h"
#include "benchmarks/common/report.h"
#include "core/base/result.h"

namespace freshet::benchmarks {

/// One rank whose layers each compute for four times as long as it takes to copy them: how long the loop stands still
/// when the checkpoint is taken at once after the last update, and when each layer is captured as its update is done.
Status measure_layers(const CheckpointOptions& options, Report& report);

}  // namespace freshet::benchmarks
