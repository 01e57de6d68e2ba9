// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "benchmarks/checkpoint/options.h"
#include "benchmarks/common/report.h"
#include "core/base/result.h"

namespace freshet::benchmarks {

/// A training loop of one rank whose versions go to a repository at a limited rate: how long a step takes beside that,
/// against the same steps alone.
Status measure_flush(const CheckpointOptions& options, Report& report);

}  // namespace freshet::benchmarks
