// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "benchmarks/checkpoint/options.h"
#include "benchmarks/common/report.h"
#include "core/base/result.h"

namespace freshet::benchmarks {

/// Four ranks of four hosts, on one machine and in memory: what each way of a group costs, what it keeps of a version
/// of which a quarter changed, and what gives lost hosts' shares back.
Status measure_groups(const CheckpointOptions& options, Report& report);

}  // namespace freshet::benchmarks
