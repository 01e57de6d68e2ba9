// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What main() of a benchmark does around its measuring: reads --quick, --json and the benchmark's own options from the
/// command line, measures, prints the report, and says on stderr what went wrong.

#include <functional>
#include <optional>
#include <string>

#include <CLI/CLI.hpp>
#include "benchmarks/common/report.h"
#include "core/base/result.h"

namespace freshet::benchmarks {

/// The options of every benchmark. A benchmark's own options derive from them.
struct CommonOptions {
  bool quick = false;  ///< Smaller sizes, about a minute.
  bool json = false;   ///< Nothing but the JSON object on standard output.
};

struct CommandLine {
  std::string name;
  std::string about;
  CommonOptions& options;
  std::function<void(CLI::App&)> add_options = {};  ///< Beside those two.
};

using Measure = std::function<Status(Report&)>;

/// Reads the command line. The exit code if the program ends here: 0 after --help, 2 for a wrong command line.
std::optional<int> ends_at_words(CLI::App& app, int count, char** words);

/// Measures, and prints the report. Returns the exit code: 0, or 1 when `measure` failed.
int print_report(const std::string& name, bool json, const Measure& measure);

/// Returns the exit code: 0, 1 when `measure` failed, 2 for a wrong command line.
int run_benchmark(int count, char** words, const CommandLine& line, const Measure& measure);

/// Calls `use` with a new folder below `parent`, which is gone afterwards.
Status in_new_folder(const std::string& parent, const std::function<Status(const std::string& folder)>& use);

}  // namespace freshet::benchmarks
