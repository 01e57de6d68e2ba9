// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What a user would take instead, where the user names it: each run as a program of its own, which prints lines
/// "SUBJECT MILLISECONDS". Their rows go into the report, under that case. unavailable says why there are none.

#include <cstdint>
#include <string>

#include "benchmarks/checkpoint/options.h"
#include "benchmarks/common/report.h"
#include "core/base/result.h"

namespace freshet::benchmarks {

/// One rank, its scratch in memory: `veloc_blocked`.
Status run_veloc(const CheckpointOptions& options, const std::string& name, std::uint64_t bytes, std::size_t tensors,
                 Report& report);
/// Replicated tensors at each rank, written to memory: `dcp_async_blocked` (the slowest rank's), `torch_save`.
Status run_torch(const CheckpointOptions& options, const std::string& name, std::uint64_t bytes, std::size_t tensors,
                 std::uint32_t ranks, Report& report);
/// RS(2) of one file of each rank, in memory: `redset_rs2_encode`, `redset_rs2_rebuild` (two ranks lost).
Status run_redset(const CheckpointOptions& options, const std::string& name, std::uint64_t bytes_of_rank,
                  std::uint32_t ranks, Report& report);

}  // namespace freshet::benchmarks
