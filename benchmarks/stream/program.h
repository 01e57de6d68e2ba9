// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What every benchmark of streaming does at its door: options, roles, the report's printing.

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "benchmarks/common/command_line.h"
#include "core/base/result.h"

namespace freshet::benchmarks {

struct ProgramOptions : CommonOptions {
  int repetitions = 0;  ///< Measured updates per case; 0: as the program thinks best.

  int repetitions_or(int when_quick, int otherwise) const {
    return repetitions > 0 ? repetitions : quick ? when_quick : otherwise;
  }
};

struct Program {
  std::string name;
  std::string about;
  /// Measures everything. What is missing on this machine is a skip in the report, not an error.
  std::function<Status(const ProgramOptions&, Report&)> measure;
  /// Other processes of this program, besides the publisher and the subscriber: `--role=NAME ARGUMENT…`.
  std::map<std::string, std::function<int(const std::vector<std::string>&)>> roles = {};
};

/// Returns the exit code.
int run_program(int argc, char** argv, const Program& program);

/// "name: what" on stderr: how far it is.
void tell_progress(const Program& program, const std::string& what);

}  // namespace freshet::benchmarks
