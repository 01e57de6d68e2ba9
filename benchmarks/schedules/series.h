// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What plots.gp draws, as tab-separated files.

#include <string>
#include <vector>

#include "benchmarks/schedules/summary.h"

namespace freshet::benchmarks {

/// Writes into `folder`, which is made:
/// - `NAME.curve` for each curve: row, loss (mean of the rows around), trend; some hundred rows of it;
/// - `NAME_PRICE.publishes` for each case: lane, row; a lane for epoch, fixed, optimal, online and the oracle, from 1;
/// - `ratios.tsv`: for each contender a column of its ratios to the oracle, less one, sorted.
Status write_series(const std::string& folder, const std::vector<Played>& played);

}  // namespace freshet::benchmarks
