// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What the reader costs inside a program, call by call, and what a file costs the keeper. Needs no slow folder.

#include <string>

#include "benchmarks/common/report.h"
#include "core/base/result.h"

namespace freshet::benchmarks {

/// In `folder`, which is this run's alone.
Status measure_costs(const std::string& folder, bool quick, int rounds, Report& report);

/// main() of the program that makes calls and prints what one takes: cost pread FILE BYTES COUNT, cost open FILE COUNT,
/// cost exec COUNT.
int run_cost(int count, char** words);

}  // namespace freshet::benchmarks
