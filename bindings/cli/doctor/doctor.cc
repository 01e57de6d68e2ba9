// SPDX-License-Identifier: Apache-2.0
// `freshet doctor`: what this machine offers, what that enables, and how to get the rest.

#include "bindings/cli/doctor/finding.h"
#include "bindings/cli/frame/arguments.h"
#include "bindings/cli/frame/program.h"

namespace freshet::cli {

std::string_view name_of(Health health) {
  switch (health) {
    case Health::ok: return "ok";
    case Health::limited: return "limited";
    case Health::missing: return "missing";
  }
  return "unknown";
}

namespace {

struct DoctorArguments {};

Result<ExitCode> examine(Program& program, const DoctorArguments& /*none*/) {
  std::vector<std::vector<std::string>> rows = {{"CHECK", "STATE", "FOUND", "ENABLES", "HOW TO GET IT"}};
  for (const auto find : {find_vector_code, find_memory_lock, find_huge_pages, find_shared_memory, find_host_directory,
                          find_directory, find_tier_reader, find_tier_kernel, find_tiers, find_ucx, find_cuda,
                          find_nccl, find_redis, find_ceph, find_gnuplot}) {
    const Finding finding = find();
    const std::string state(name_of(finding.health));
    rows.push_back({finding.check, state, finding.found, finding.enables, finding.get});
    if (!program.out.json) continue;
    FRESHET_TRY(program.out.emit({{"check", finding.check},
                                  {"state", state},
                                  {"found", finding.found},
                                  {"enables", finding.enables},
                                  {"get", finding.get}},
                                 ""));
  }
  if (!program.out.json) FRESHET_TRY(program.out.write(table(rows) + "\n"));
  return ExitCode::done;
}

}  // namespace

void add_doctor(CLI::App& root, Program& program) {
  CLI::App& command =
      *root.add_subcommand("doctor", "check this machine: its parts, what they enable, and how to get the rest");
  command.footer("A line per check: check, state (ok, limited, missing), found, enables, get.");
  add_json_flag(command, program);
  act_with(command, program, std::make_shared<DoctorArguments>(), examine);
}

}  // namespace freshet::cli
