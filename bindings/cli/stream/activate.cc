// SPDX-License-Identifier: Apache-2.0
// `freshet rollback`, `release` and `commit`: which version of a model is to be served.

#include <optional>

#include "bindings/cli/frame/arguments.h"
#include "bindings/cli/frame/program.h"
#include "core/base/format.h"
#include "transport/current.h"

namespace freshet::cli {
namespace {

struct Arguments {
  std::string version;
  ActivationTarget target;
  ActivationRequest request;
  std::optional<std::uint64_t> epoch;
  double within = 5;
};

Result<ExitCode> activate(Program& program, const Arguments& arguments) {
  const VersionName name = version_of(arguments.version);
  ActivationTarget target = arguments.target;
  target.model = name.model;
  ActivationRequest request = arguments.request;
  request.version = name.number;
  request.within = seconds(arguments.within);
  request.expected_epoch = arguments.epoch;
  FRESHET_ASSIGN(const ActivationReport report, ask_activate(target, request));
  const double mixed_ms = std::chrono::duration<double, std::milli>(report.mixed).count();
  std::string late;
  if (report.behind > 0) {
    late = format("; {} not serve it yet, those behind relays counted too (`freshet top` names them)",
                  report.behind == 1 ? "1 follower does" : format("{} followers do", report.behind));
  }
  FRESHET_TRY(program.out.emit({{"model", name.model},
                                {"version", report.current.version},
                                {"epoch", report.current.epoch},
                                {"hold", report.current.hold},
                                {"members", report.members},
                                {"mixed_ms", mixed_ms},
                                {"behind", report.behind}},
                               format("{}@{} is current{}, epoch {}{}{}", name.model, report.current.version,
                                      report.current.hold ? " and held" : "", report.current.epoch, late,
                                      report.members > 0 ? format(", {} member{}, mixed for {:.1f} ms", report.members,
                                                                  report.members == 1 ? "" : "s", mixed_ms)
                                                         : "")));
  return ExitCode::done;
}

/// What the three have in common.
CLI::App& add_activation(CLI::App& root, Program& program, const std::shared_ptr<Arguments>& arguments,
                         const char* name, const char* description, const char* version) {
  CLI::App& command = *root.add_subcommand(name, description);
  add_json_flag(command, program);
  add_version(command, version, arguments->version, "a version that the publisher keeps");
  add_seconds(command, "--within", arguments->within,
              "the longest time for members to stage it, and for the directory to answer")
      ->capture_default_str();
  command.add_option("--epoch", arguments->epoch, "act only if this epoch is current (see `freshet top`)")
      ->type_name("N");
  add_address(command, arguments->target.at, AddressUse::connect,
              "the publisher's address; default: ask the directory");
  add_directory(command, arguments->target.directory);
  add_security(command, arguments->target.security, arguments->target.at, AddressUse::connect);
  command.footer(
      "model, version, epoch, hold, members (that had staged it), mixed_ms (time from the first follower known to "
      "serve it\n"
      "to the last; 0: not known, or there was one), behind (followers, also behind relays, that do not serve it yet;\n"
      "the command waits some seconds for them, and not for silent ones; a group's silent members are not counted).");
  return command;
}

void act(CLI::App& command, Program& program, const std::shared_ptr<Arguments>& arguments, bool needs_version) {
  command.callback([&program, arguments, needs_version, name = command.get_name()] {
    if (needs_version && version_of(arguments->version).number == 0) {
      throw CLI::ValidationError(name + ": name the version, MODEL@V");
    }
    program.action = [&program, arguments] { return activate(program, *arguments); };
  });
}

}  // namespace

void add_rollback(CLI::App& root, Program& program) {
  auto arguments = std::make_shared<Arguments>();
  arguments->request.hold = true;
  CLI::App& command = add_activation(root, program, arguments, "rollback",
                                     "go back to an older version, and hold it until a release", "MODEL@V");
  command.add_flag("!--no-hold", arguments->request.hold, "do not hold: subscribers serve the next publish");
  command.add_flag("--group", arguments->request.as_group, "only when all members have staged it");
  act(command, program, arguments, /*needs_version=*/true);
}

void add_release(CLI::App& root, Program& program) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App& command = add_activation(root, program, arguments, "release",
                                     "end a hold: subscribers serve the newest version, or the named one", "MODEL[@V]");
  command.add_flag("--group", arguments->request.as_group, "only when all members have staged it");
  act(command, program, arguments, /*needs_version=*/false);
}

void add_commit(CLI::App& root, Program& program) {
  auto arguments = std::make_shared<Arguments>();
  arguments->request.as_group = true;
  CLI::App& command = add_activation(root, program, arguments, "commit",
                                     "make a group serve a version, all members or none", "MODEL@V");
  command.add_flag("--hold", arguments->request.hold, "hold it: serve no other version until a release");
  act(command, program, arguments, /*needs_version=*/true);
}

}  // namespace freshet::cli
