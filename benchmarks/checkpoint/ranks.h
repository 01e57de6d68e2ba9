// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "benchmarks/checkpoint/options.h"
#include "benchmarks/common/report.h"
#include "core/base/result.h"

namespace freshet::benchmarks {

/// One, two, four and eight ranks on this machine: bytes of a rank, how long it stands still against memcpys by as many
/// threads at once, packets for a version. And how long other numbers of ranks than wrote a version take to restore it.
Status measure_ranks(const CheckpointOptions& options, Report& report);

}  // namespace freshet::benchmarks
