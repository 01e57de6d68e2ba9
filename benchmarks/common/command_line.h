// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What main() of a benchmark does around its measuring: reads --quick, --json and what else it knows from the command
/// line, runs it, and says on stderr what went wrong.

#include <functional>
#include <optional>
#include <string>

#include <CLI/CLI.hpp>
#include "core/base/result.h"

namespace freshet::benchmarks {

struct CommandLine {
  std::string name;
  std::string about;
  bool* quick = nullptr;
  bool* json = nullptr;
  std::function<void(CLI::App&)> add_options;  ///< Beside those two; may be empty.
};

/// Reads the command line. The exit code if the program ends here: 0 after --help, 2 for a wrong command line.
std::optional<int> ends_at_words(CLI::App& app, int count, char** words);

/// Returns the exit code: 0, 1 when `run` failed, 2 for a wrong command line.
int run_benchmark(int count, char** words, const CommandLine& line, const std::function<Status()>& run);

}  // namespace freshet::benchmarks
