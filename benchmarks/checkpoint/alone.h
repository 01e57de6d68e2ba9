// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "benchmarks/checkpoint/options.h"
#include "benchmarks/common/report.h"
#include "core/base/result.h"

namespace freshet::benchmarks {

/// One rank on the disk: for how long its loop stands still, until a version is at each level, until it is back, and
/// what a quarter costs; against one memcpy of its share and a plain file. The ratios are of the first model.
Status measure_alone(const CheckpointOptions& options, Report& report);

/// One rank with its folder in memory: a row `freshet_blocked` of that case, for peers that write there.
Status measure_blocked_in_memory(const CheckpointOptions& options, const std::string& name, std::uint64_t bytes,
                                 std::size_t tensors, Report& report);

}  // namespace freshet::benchmarks
