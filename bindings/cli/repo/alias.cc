// SPDX-License-Identifier: Apache-2.0
// `freshet repo alias`: names that move from version to version.

#include "bindings/cli/frame/arguments.h"
#include "bindings/cli/repo/repo.h"
#include "core/base/format.h"

namespace freshet::cli {
namespace {

struct AliasArguments {
  std::string name;  ///< MODEL or MODEL@ALIAS.
  std::string to;
  std::optional<VersionNumber> expected;
  bool remove = false;
};

Json alias_json(const std::string& model, const std::string& alias, VersionNumber number) {
  return {{"model", model}, {"alias", alias}, {"version", number == 0 ? Json() : Json(number)}};
}

Result<ExitCode> list_aliases(Program& program, const Repository& repository, const std::string& model) {
  FRESHET_ASSIGN(const std::vector<Alias> aliases, repository.aliases(model));
  // A model without aliases is another answer than no model.
  if (aliases.empty()) FRESHET_TRY(repository.latest(model));
  std::vector<std::vector<std::string>> rows = {{"ALIAS", "VERSION"}};
  for (const Alias& alias : aliases) {
    rows.push_back({format("{}@{}", model, alias.name), to_string(VersionName{model, alias.number})});
    if (program.out.json) FRESHET_TRY(program.out.emit(alias_json(model, alias.name, alias.number), ""));
  }
  if (!program.out.json) FRESHET_TRY(program.out.write(table(rows) + "\n"));
  return ExitCode::done;
}

/// A name that stands for the newest version means the one that is the newest now.
Result<VersionNumber> number_of(const Repository& repository, const std::string& model, const std::string& to) {
  FRESHET_ASSIGN(const VersionName name, repository.resolve(to));
  if (name.model != model) {
    return fail(Code::invalid_argument, format("{} is not a version of {}", to, model));
  }
  if (name.number != 0) return name.number;
  return repository.latest(model);
}

Result<ExitCode> alias(Program& program, Repository& repository, const AliasArguments& arguments) {
  FRESHET_ASSIGN(const VersionReference reference, parse_version_reference(arguments.name));
  const std::string& model = reference.name.model;
  if (reference.alias.empty()) return list_aliases(program, repository, model);
  VersionNumber number = 0;
  if (!arguments.to.empty()) {
    FRESHET_ASSIGN(number, number_of(repository, model, arguments.to));
  }
  if (arguments.to.empty() && !arguments.remove) {
    FRESHET_ASSIGN(const VersionName name, repository.resolve(arguments.name));
    number = name.number;
  } else {
    FRESHET_TRY(repository.set_alias(model, reference.alias, arguments.expected, number));
  }
  FRESHET_TRY(program.out.emit(
      alias_json(model, reference.alias, number),
      format("{}@{} is {}", model, reference.alias, number == 0 ? "gone" : to_string(VersionName{model, number}))));
  return ExitCode::done;
}

void check_alias_options(const AliasArguments& arguments) {
  const Result<VersionReference> reference = parse_version_reference(arguments.name);
  if (!reference) throw CLI::ValidationError(reference.error().message());
  const bool changes = !arguments.to.empty() || arguments.remove;
  if (reference->name.number != 0) throw CLI::ValidationError("alias: MODEL or MODEL@ALIAS, not a number");
  if (changes && reference->alias.empty()) throw CLI::ValidationError("alias: name the alias to change, MODEL@ALIAS");
  if (!changes && arguments.expected) throw CLI::ValidationError("alias: --expect goes with --to or --remove");
}

}  // namespace

void add_alias(CLI::App& repo, Program& program) {
  auto arguments = std::make_shared<AliasArguments>();
  CLI::App& command =
      add_repo_command(repo, program, "alias", "names like net@best, which move from version to version");
  add_reference(command, "MODEL[@ALIAS]", arguments->name, "a model, for all its aliases; or one alias");
  CLI::Option* to = command.add_option("--to", arguments->to, "the version that the alias means from now on")
                        ->type_name("MODEL@V")
                        ->check(reference_check());
  command.add_flag("--remove", arguments->remove, "remove the alias")->excludes(to);
  command
      .add_option("--expect", arguments->expected,
                  "change the alias only if it means this version now; 0: it is not set yet")
      ->type_name("V");
  command.footer(
      "A line of JSON each: model, alias, version. A version that an alias means cannot be retired.\n"
      "example: freshet repo alias net@best --to net@7 --expect 5");
  const auto access = [](const AliasArguments& given) {
    return !given.to.empty() || given.remove ? RepositoryAccess::write : RepositoryAccess::read;
  };
  act_on_repository(command, program, arguments, access, alias, check_alias_options);
}

}  // namespace freshet::cli
