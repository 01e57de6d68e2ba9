// SPDX-License-Identifier: Apache-2.0
/// Trains a model in one process and serves it, always fresh, in others, with every version kept. See `live_run
/// --help`.

#include <sys/prctl.h>

#include "examples/live_run/options.h"
#include "examples/live_run/role.h"
#include "examples/live_run/supervisor.h"

int main(int argc, char** argv) {
  using namespace freshet::live;
  (void)::prctl(PR_SET_NAME, "live_run");  // A role is started as /proc/self/exe, and would be called so.
  const ParsedCommandLine parsed = parse_command_line(argc, argv);
  if (!parsed.command_line) return parsed.exit_code;
  if (!parsed.command_line->role.role.empty()) return role_main(parsed.command_line->role);
  return supervise(parsed.command_line->run);
}
