// SPDX-License-Identifier: Apache-2.0
// `freshet doctor`: what this machine offers, what that enables, and how to get the rest.

#include "bindings/cli/doctor/finding.h"
#include "bindings/cli/frame/arguments.h"
#include "bindings/cli/frame/program.h"
#include "core/base/format.h"

namespace freshet::cli {

std::string_view name_of(Health health) {
  switch (health) {
    case Health::ok: return "ok";
    case Health::limited: return "limited";
    case Health::missing: return "missing";
    case Health::not_built: return "not built";
  }
  return "unknown";
}

namespace {

struct DoctorArguments {};

constexpr std::size_t kDoctorColumns = 100;
constexpr std::size_t kCheckColumns = 16;
constexpr std::size_t kStateColumns = 11;

std::string finding_text(const Finding& finding) {
  constexpr std::size_t kIndent = kCheckColumns + kStateColumns;
  const auto lines = [](const std::string& text) { return wrapped(printable(text), kIndent, kDoctorColumns) + "\n"; };
  std::string text = format("{:<{}}{:<{}}", finding.check, kCheckColumns, name_of(finding.health), kStateColumns) +
                     lines(finding.found + "; for " + finding.enables);
  if (!finding.get.empty()) text += std::string(kIndent, ' ') + lines("to get it: " + finding.get);
  return text;
}

Result<ExitCode> examine(Program& program, const DoctorArguments& /*none*/) {
  std::string text;
  for (const auto find : {find_vector_code, find_memory_lock, find_huge_pages, find_shared_memory, find_host_directory,
                          find_directory, find_tier_reader, find_tier_kernel, find_tiers, find_ucx, find_cuda,
                          find_nccl, find_redis, find_ceph, find_s3}) {
    const Finding finding = find();
    const std::string state(name_of(finding.health));
    text += finding_text(finding);
    if (!program.out.json) continue;
    FRESHET_TRY(program.out.emit({{"check", finding.check},
                                  {"state", state},
                                  {"found", finding.found},
                                  {"enables", finding.enables},
                                  {"get", finding.get}},
                                 ""));
  }
  if (!program.out.json) FRESHET_TRY(program.out.write(text));
  return ExitCode::done;
}

}  // namespace

void add_doctor(CLI::App& root, Program& program) {
  CLI::App& command =
      *root.add_subcommand("doctor", "check this machine: its parts, what they enable, and how to get the rest");
  command.footer("A line per check: check, state (ok, limited, missing, not built), found, enables, get.");
  add_json_flag(command, program);
  act_with(command, program, std::make_shared<DoctorArguments>(), examine);
}

}  // namespace freshet::cli
