// SPDX-License-Identifier: Apache-2.0
// `freshet rollback`, `release` and `commit`: which version of a model is to be served.

#include <optional>

#include "bindings/cli/arguments.h"
#include "bindings/cli/program.h"
#include "core/format.h"
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
  FRESHET_TRY(program.out.emit({{"model", name.model},
                                {"version", report.current.version},
                                {"epoch", report.current.epoch},
                                {"hold", report.current.hold},
                                {"members", report.members},
                                {"mixed_ms", mixed_ms},
                                {"behind", report.behind}},
                               format("{}@{} is current{}, epoch {}{}{}", name.model, report.current.version,
                                      report.current.hold ? " and held" : "", report.current.epoch,
                                      report.behind > 0 ? format("; {} of those who follow it, or a relay of it, "
                                                                 "do not serve it yet (`freshet top` tells who)",
                                                                 report.behind)
                                                        : "",
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
  add_version(command, version, arguments->version, "of a model that is published");
  command
      .add_option("--within", arguments->within, "how long members may take to stage it, and the directory to answer")
      ->check(seconds_check())
      ->type_name("S")
      ->capture_default_str();
  command.add_option("--epoch", arguments->epoch, "only if this epoch is current, as `freshet top` tells it")
      ->type_name("N");
  add_address(command, arguments->target.at, AddressUse::connect,
              "where the publisher listens; default: ask the host directory");
  add_directory(command, arguments->target.directory);
  add_security(command, arguments->target.security, arguments->target.at, AddressUse::connect);
  command.footer(
      "model, version, epoch, hold, members (that had staged it), mixed_ms (from the first that was known to\n"
      "serve it to the last; 0: not known, or there was one), behind (followers, those of relays among them, that\n"
      "do not serve it yet; they are waited for some seconds).");
  return command;
}

void act(CLI::App& command, Program& program, const std::shared_ptr<Arguments>& arguments, bool needs_version) {
  command.callback([&program, arguments, needs_version, name = command.get_name()] {
    if (needs_version && version_of(arguments->version).number == 0) {
      throw CLI::ValidationError(name + ": write which version, MODEL@V");
    }
    program.action = [&program, arguments] { return activate(program, *arguments); };
  });
}

}  // namespace

void add_rollback(CLI::App& root, Program& program) {
  auto arguments = std::make_shared<Arguments>();
  arguments->request.hold = true;
  CLI::App& command = add_activation(root, program, arguments, "rollback",
                                     "go back to an older version, and hold it until it is released", "MODEL@V");
  command.add_flag("!--no-hold", arguments->request.hold, "the next publish is served again");
  command.add_flag("--group", arguments->request.as_group, "only once all members have staged it");
  act(command, program, arguments, /*needs_version=*/true);
}

void add_release(CLI::App& root, Program& program) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App& command = add_activation(root, program, arguments, "release",
                                     "let go of a held version: the newest, or the one named, is served", "MODEL[@V]");
  command.add_flag("--group", arguments->request.as_group, "only once all members have staged it");
  act(command, program, arguments, /*needs_version=*/false);
}

void add_commit(CLI::App& root, Program& program) {
  auto arguments = std::make_shared<Arguments>();
  arguments->request.as_group = true;
  CLI::App& command =
      add_activation(root, program, arguments, "commit", "a group serves that version, all members or none", "MODEL@V");
  command.add_flag("--hold", arguments->request.hold, "and nothing else until it is released");
  act(command, program, arguments, /*needs_version=*/true);
}

}  // namespace freshet::cli
