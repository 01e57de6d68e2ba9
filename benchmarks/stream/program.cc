// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/stream/program.h"

#include <signal.h>

#include <cstdio>
#include <iostream>

#include "benchmarks/stream/stream_peer.h"
#include "core/base/format.h"

namespace freshet::benchmarks {
namespace {

int run_role(const Program& program, const std::string& role, const std::vector<std::string>& arguments) {
  if (const int code = run_peer(role, arguments); code >= 0) return code;
  const auto known = program.roles.find(role);
  if (known != program.roles.end()) return known->second(arguments);
  std::cerr << program.name << ": no role '" << role << "'\n";
  return 2;
}

}  // namespace

int run_program(int argc, char** argv, const Program& program) {
  CLI::App app(program.about, program.name);
  ProgramOptions options;
  std::string role;
  std::vector<std::string> arguments;
  app.add_flag("--quick", options.quick, "Smaller sizes, a minute at most");
  app.add_flag("--json", options.json, "Nothing but the JSON line on standard output");
  app.add_option("--repetitions", options.repetitions, "Measured updates per case");
  app.add_option("--role", role)->group("");
  app.add_option("arguments", arguments)->group("");
  if (const auto code = ends_at_words(app, argc, argv)) return *code;
  ::signal(SIGPIPE, SIG_IGN);  // A child that died is an error of the line that cannot be written.
  if (!role.empty()) return run_role(program, role, arguments);
  return print_report(program.name, options.json, [&](Report& report) { return program.measure(options, report); });
}

void tell_progress(const Program& program, const std::string& what) {
  std::fprintf(stderr, "%s: %s\n", program.name.c_str(), what.c_str());
}

}  // namespace freshet::benchmarks
