// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/common/command_line.h"

#include <iostream>

namespace freshet::benchmarks {

std::optional<int> ends_at_words(CLI::App& app, int count, char** words) {
  try {
    app.parse(count, words);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return std::nullopt;
}

int run_benchmark(int count, char** words, const CommandLine& line, const std::function<Status()>& run) {
  CLI::App app(line.about, line.name);
  app.add_flag("--quick", *line.quick, "Smaller sizes, about a minute");
  app.add_flag("--json", *line.json, "Print nothing but one JSON object");
  if (line.add_options) line.add_options(app);
  if (const auto code = ends_at_words(app, count, words)) return *code;
  const Status status = run();
  if (!status) std::cerr << line.name << ": " << status.error().message() << "\n";
  return status ? 0 : 1;
}

}  // namespace freshet::benchmarks
