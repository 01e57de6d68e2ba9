// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What a command costs: the time of a child process by the clock, and its processor time, as the kernel counted it.

#include <string>
#include <vector>

#include "core/base/result.h"

namespace freshet::benchmarks {

struct CommandCost {
  double wall_ms = 0;
  double processor_ms = 0;  ///< User and system together, of the child and of the children that it waited for.
};

/// Runs a program (found in PATH) to its end; its output goes nowhere. An error when it cannot be started, or ends with
/// another code than 0.
Result<CommandCost> cost_of(const std::vector<std::string>& arguments);

}  // namespace freshet::benchmarks
