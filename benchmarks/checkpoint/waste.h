// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "benchmarks/checkpoint/options.h"
#include "benchmarks/common/report.h"
#include "core/base/result.h"

namespace freshet::benchmarks {

/// Training on machines that fail, simulated: the time that the schedule failures:MTBF loses, against the best of all
/// fixed intervals, tried one by one.
Status measure_waste(const CheckpointOptions& options, Report& report);

}  // namespace freshet::benchmarks
