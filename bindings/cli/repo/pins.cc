// SPDX-License-Identifier: Apache-2.0
// `freshet repo pin`, `unpin` and `pins`.

#include "bindings/cli/frame/arguments.h"
#include "bindings/cli/repo/repo.h"
#include "core/base/format.h"

namespace freshet::cli {
namespace {

struct PinsArguments {
  std::string version;
  std::string by = "cli";
  bool all = false;
};

/// Of one holder on one version: who has pinned so often since, and still does, is no dead one.
constexpr int kUnpinsMax = 1'000'000;

/// What a name meant when the command began, and who pins it now.
Status tell_pins(Program& program, const Repository& repository, const VersionName& name, Json line) {
  FRESHET_ASSIGN(const std::vector<std::string> pins, repository.pins(name));
  line["pins"] = pins;
  std::string by;
  for (const std::string& pin : pins) by += " " + pin;
  return program.out.emit(line, format("{}  pinned by:{}", to_string(name), pins.empty() ? " nobody" : printable(by)));
}

Result<VersionName> named(const Repository& repository, const std::string& text) {
  FRESHET_ASSIGN(const VersionName asked, repository.resolve(text));
  FRESHET_ASSIGN(const VersionRecord record, repository.get(asked));
  return record.manifest.name;
}

/// All of them, or those of one model or version.
Result<std::vector<PinnedVersion>> pins_of(const Repository& repository, const std::string& version,
                                           const std::string& by) {
  std::optional<VersionName> asked;
  if (!version.empty()) {
    FRESHET_ASSIGN(asked, repository.resolve(version));
    if (asked->number == 0) FRESHET_TRY(repository.latest(asked->model));
    if (asked->number != 0) FRESHET_TRY(repository.get(*asked));
  }
  FRESHET_ASSIGN(std::vector<PinnedVersion> pins, repository.all_pins());
  std::erase_if(pins, [&](const PinnedVersion& pin) {
    if (!by.empty() && pin.by != by) return true;
    if (!asked) return false;
    return asked->number == 0 ? pin.version.model != asked->model : pin.version != *asked;
  });
  return pins;
}

Result<ExitCode> pin(Program& program, Repository& repository, const PinsArguments& arguments) {
  FRESHET_ASSIGN(const VersionName name, named(repository, arguments.version));
  FRESHET_TRY(repository.pin(name, arguments.by, {.stays = true, .lease = {}}));
  FRESHET_TRY(tell_pins(program, repository, name, {{"model", name.model}, {"version", name.number}}));
  return ExitCode::done;
}

/// How many pins of the holder there were.
Result<int> unpin_wholly(Repository& repository, const VersionName& name, const std::string& by) {
  for (int taken = 0; taken < kUnpinsMax; ++taken) {
    const Status unpinned = repository.unpin(name, by, {.stays = true, .lease = {}});
    if (unpinned) continue;
    if (taken > 0 && unpinned.error().code() == Code::not_found) return taken;
    return fail(unpinned.error());
  }
  return fail(Code::failed_precondition, format("{} still pins {}", by, to_string(name)));
}

Result<ExitCode> unpin_all(Program& program, Repository& repository, const PinsArguments& arguments) {
  FRESHET_ASSIGN(const std::vector<PinnedVersion> pins, pins_of(repository, arguments.version, arguments.by));
  if (pins.empty()) return fail(Code::not_found, format("{} has no pins", arguments.by));
  for (const PinnedVersion& pin : pins) {
    FRESHET_ASSIGN(const int taken, unpin_wholly(repository, pin.version, arguments.by));
    FRESHET_TRY(tell_pins(
        program, repository, pin.version,
        {{"model", pin.version.model}, {"version", pin.version.number}, {"by", arguments.by}, {"taken", taken}}));
  }
  return ExitCode::done;
}

Result<ExitCode> unpin(Program& program, Repository& repository, const PinsArguments& arguments) {
  if (arguments.all) return unpin_all(program, repository, arguments);
  FRESHET_ASSIGN(const VersionName name, named(repository, arguments.version));
  FRESHET_TRY(repository.unpin(name, arguments.by, {.stays = true, .lease = {}}));
  FRESHET_TRY(tell_pins(program, repository, name, {{"model", name.model}, {"version", name.number}}));
  return ExitCode::done;
}

Result<ExitCode> list_pins(Program& program, Repository& repository, const PinsArguments& arguments) {
  FRESHET_ASSIGN(const std::vector<PinnedVersion> pins, pins_of(repository, arguments.version, arguments.by));
  std::vector<std::vector<std::string>> rows = {{"VERSION", "BY", "PINS", "UNTIL"}};
  for (const PinnedVersion& pin : pins) {
    const Json left = pin.left ? Json(pin.left->count() / kNanosecondsPerMillisecond) : Json();
    rows.push_back({to_string(pin.version), printable(pin.by), pin.count == 0 ? "damaged" : format("{}", pin.count),
                    pin.left ? format("{} s, unless renewed", pin.left->count() / 1'000'000'000) : "it is removed"});
    if (!program.out.json) continue;
    FRESHET_TRY(program.out.emit({{"model", pin.version.model},
                                  {"version", pin.version.number},
                                  {"by", pin.by},
                                  {"count", pin.count},
                                  {"left_ms", left}},
                                 ""));
  }
  if (!program.out.json) FRESHET_TRY(program.out.write(table(rows) + "\n"));
  return ExitCode::done;
}

void add_by(CLI::App& command, PinsArguments& arguments, const char* description) {
  command.add_option("--by", arguments.by, description)->type_name("NAME");
}

void add_pin(CLI::App& repo, Program& program) {
  auto arguments = std::make_shared<PinsArguments>();
  CLI::App& command = add_repo_command(repo, program, "pin", "pin a version: it cannot be retired");
  add_reference(command, "MODEL[@V]", arguments->version, "the version; without @V the newest");
  add_by(command, *arguments, "the holder of the pin (default: cli)");
  command.footer(
      "The pin stays until it is removed. A line of JSON: model, version, pins.\n"
      "example: freshet repo pin net@3 --by paper");
  act_on_repository(command, program, arguments, RepositoryAccess::write, pin);
}

void add_unpin(CLI::App& repo, Program& program) {
  auto arguments = std::make_shared<PinsArguments>();
  CLI::App& command = add_repo_command(repo, program, "unpin", "remove a pin, or all pins of one holder");
  command
      .add_option("MODEL[@V]", arguments->version,
                  "the version; without @V the newest (with --all, every version of it)")
      ->check(reference_check());
  CLI::Option* const by =
      command.add_option("--by", arguments->by, "the holder of the pin (default: cli)")->type_name("NAME");
  command.add_flag("--all", arguments->all, "all pins of NAME: for a holder that is gone")->needs(by);
  command.footer(
      "A line of JSON each: model, version, pins; with --all also by and taken, the number of removed pins.\n"
      "examples: freshet repo unpin net@3 --by paper\n"
      "          freshet repo unpin --all --by worker7");
  act_on_repository(command, program, arguments, RepositoryAccess::write, unpin, [](const PinsArguments& given) {
    if (given.version.empty() && !given.all) throw CLI::ValidationError("unpin: give MODEL[@V] or --all");
  });
}

void add_list(CLI::App& repo, Program& program) {
  auto arguments = std::make_shared<PinsArguments>();
  arguments->by.clear();
  CLI::App& command = add_repo_command(repo, program, "pins", "the pins, their holders, and how long they last");
  command.add_option("MODEL[@V]", arguments->version, "only pins of this version, or of this model")
      ->check(reference_check());
  add_by(command, *arguments, "only NAME's");
  command.footer(
      "A line of JSON each: model, version, by, count, left_ms: the time until the pin ends if its\n"
      "program does not renew it; null for a pin that stays until it is removed. example: freshet repo pins --by "
      "worker7");
  act_on_repository(command, program, arguments, RepositoryAccess::read, list_pins);
}

}  // namespace

void add_pins(CLI::App& repo, Program& program) {
  add_pin(repo, program);
  add_unpin(repo, program);
  add_list(repo, program);
}

}  // namespace freshet::cli
