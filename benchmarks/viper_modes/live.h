// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Viper's Figure 9 in our live run: a real model trained at a fixed schedule and served over one channel or another.

#include "benchmarks/stream/program.h"

namespace freshet::benchmarks {

/// A row of each quantity for each channel; those that this build lacks are skipped in the report.
void measure_live_runs(const ProgramOptions& options, Report& report);

}  // namespace freshet::benchmarks
