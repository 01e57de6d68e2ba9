// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What one command on a folder of many deep models costs, in processor time, beside `ls -l` of as many files.

#include <cstdint>
#include <string>

#include "benchmarks/common/report.h"
#include "core/base/result.h"

namespace freshet::benchmarks {

struct CommandCase {
  std::uint64_t models = 0;
  std::uint32_t layers = 0;
  std::string folder;   ///< An existing one, for what is made and goes again.
  std::string store;    ///< Kept, and used again where it is there already; empty: one that goes again.
  std::string program;  ///< The command `freshet`.
  int tries = 5;
};

Status measure_commands(const CommandCase& options, Report& report);

/// What a graph of so many layers takes on the disk: in a folder of graphs without weights.
Status measure_graph_bytes(std::uint64_t models, std::uint32_t layers, const std::string& folder, Report& report);

}  // namespace freshet::benchmarks
