// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/common/command_line.h"

#include <stdlib.h>

#include <filesystem>
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

int print_report(const std::string& name, bool json, const Measure& measure) {
  Report report(name);
  if (const Status status = measure(report); !status) {
    std::cerr << name << ": " << status.error().message() << "\n";
    return 1;
  }
  std::cout << (json ? "" : report.table() + "\n") << report.json() << std::endl;
  return 0;
}

int run_benchmark(int count, char** words, const CommandLine& line, const Measure& measure) {
  CLI::App app(line.about, line.name);
  app.add_flag("--quick", line.options.quick, "Smaller sizes, about a minute");
  app.add_flag("--json", line.options.json, "Print nothing but one JSON object");
  if (line.add_options) line.add_options(app);
  if (const auto code = ends_at_words(app, count, words)) return *code;
  return print_report(line.name, line.options.json, measure);
}

Status in_new_folder(const std::string& parent, const std::function<Status(const std::string& folder)>& use) {
  std::string folder = parent + "/freshet-benchmark-XXXXXX";
  if (::mkdtemp(folder.data()) == nullptr) return fail_errno(errno, folder);
  const Status status = use(folder);
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  return status;
}

}  // namespace freshet::benchmarks
