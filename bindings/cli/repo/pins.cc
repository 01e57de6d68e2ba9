// `freshet repo pin` and `unpin`.

#include "bindings/cli/arguments.h"
#include "bindings/cli/repo/repo.h"
#include "core/format.h"

namespace freshet::cli {
namespace {

struct Arguments {
  std::string version;
  std::string by = "cli";
};

using ChangePin = Status (Repository::*)(const VersionName&, const std::string&, const PinTerms&);

/// Changes a pin of the version that the name meant when the command began, and says who pins it now.
Result<ExitCode> change(Program& program, Repository& repository, const Arguments& arguments, ChangePin change_pin) {
  FRESHET_ASSIGN(const VersionName asked, repository.resolve(arguments.version));
  FRESHET_ASSIGN(const VersionRecord record, repository.get(asked));
  const VersionName& name = record.manifest.name;
  FRESHET_TRY((repository.*change_pin)(name, arguments.by, {.stays = true, .lease = {}}));
  FRESHET_ASSIGN(const std::vector<std::string> pins, repository.pins(name));
  std::string by;
  for (const std::string& pin : pins) by += " " + pin;
  FRESHET_TRY(program.out.emit({{"model", name.model}, {"version", name.number}, {"pins", pins}},
                               format("{}  pinned by:{}", to_string(name), pins.empty() ? " nobody" : printable(by))));
  return ExitCode::done;
}

void add_pin_command(CLI::App& repo, Program& program, const char* name, const char* description,
                     ChangePin change_pin) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App& command = add_repo_command(repo, program, name, description);
  add_reference(command, "MODEL[@V]", arguments->version, "which; without @V the newest");
  command.add_option("--by", arguments->by, "whose pin it is")->type_name("NAME")->capture_default_str();
  command.footer("A line of JSON: model, version, pins.");
  act_on_repository(command, program, arguments, RepositoryAccess::write,
                    [change_pin](Program& at, Repository& repository, const Arguments& chosen) {
                      return change(at, repository, chosen, change_pin);
                    });
}

}  // namespace

void add_pins(CLI::App& repo, Program& program) {
  add_pin_command(repo, program, "pin", "keep a version from being retired", &Repository::pin);
  add_pin_command(repo, program, "unpin", "take a pin away", &Repository::unpin);
}

}  // namespace freshet::cli
