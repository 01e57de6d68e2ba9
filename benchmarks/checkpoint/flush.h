// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "benchmarks/checkpoint/options.h"
#include "benchmarks/common/report.h"
#include "core/base/result.h"

namespace freshet::benchmarks {

/// Measures the steps of one rank's training loop, alone and while the rank sends a version to a repository at a
/// limited rate.
Status measure_flush(const CheckpointOptions& options, Report& report);

}  // namespace freshet::benchmarks
