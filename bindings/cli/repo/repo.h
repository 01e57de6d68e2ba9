// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The commands of `freshet repo`, a file for each few that belong together. In JSON a version stands as its name,
/// "MODEL@V"; where "model" stands beside it, "version" is the number alone.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "bindings/cli/frame/program.h"
#include "bindings/runtime/repository_folder.h"
#include "repo/repository.h"

namespace freshet::cli {

/// For times in JSON, which are in milliseconds.
inline constexpr std::int64_t kNanosecondsPerMillisecond = 1'000'000;

void add_put(CLI::App& repo, Program& program);       // put
void add_get(CLI::App& repo, Program& program);       // get
void add_listings(CLI::App& repo, Program& program);  // ls, stat
void add_show(CLI::App& repo, Program& program);      // show
void add_history(CLI::App& repo, Program& program);   // lineage, owners
void add_compare(CLI::App& repo, Program& program);   // diff, mrca
void add_pins(CLI::App& repo, Program& program);      // pin, unpin, pins
void add_set(CLI::App& repo, Program& program);       // set
void add_alias(CLI::App& repo, Program& program);     // alias
void add_match(CLI::App& repo, Program& program);     // match
void add_verify(CLI::App& repo, Program& program);    // verify
void add_retire(CLI::App& repo, Program& program);    // retire, gc
void add_import(CLI::App& repo, Program& program);    // import
void add_export(CLI::App& repo, Program& program);    // export

/// --repo.
void add_repository_option(CLI::App& command, Program& program);
void add_serve(CLI::App& repo, Program& program);  // serve

/// A subcommand with the options that all of them have (--json, --repo).
CLI::App& add_repo_command(CLI::App& repo, Program& program, const std::string& name, const std::string& description);

/// Throws CLI::ValidationError (wrong usage) unless one of --repo, $FRESHET_REPO and --local names what to ask. While
/// parsing only.
void require_repository(Program& program);

/// Tells people that the answer is about one provider's part.
void say_if_part(const Program& program, const OpenedRepository& repository);

/// A subcommand that only asks: of a repository, or of the folders of a job's ranks (--local).
CLI::App& add_catalog_command(CLI::App& repo, Program& program, const std::string& name,
                              const std::string& description);

/// Opens what such a command asks: the repository of --repo, or a job's folders (--local, or --repo with one of them).
Result<std::shared_ptr<const VersionCatalog>> open_catalog(const Program& program);

/// act_with() for a command that opens the repository: `act(program, repository, arguments)`. `access` is a
/// RepositoryAccess, or tells one from the arguments. `check`, if any, throws CLI::ValidationError where arguments do
/// not go together. An act that asks a VersionCatalog gets that of open_catalog().
template <typename Arguments, typename Access, typename Act>
void act_on_repository(CLI::App& command, Program& program, std::shared_ptr<Arguments> arguments, Access access,
                       Act act, std::function<void(const std::type_identity_t<Arguments>&)> check = {}) {
  command.callback([&program, arguments, access, act, check] {
    if (check) check(*arguments);
    require_repository(program);
    program.action = [&program, arguments, access, act]() -> Result<ExitCode> {
      if constexpr (std::is_invocable_v<Act, Program&, const VersionCatalog&, const Arguments&>) {
        FRESHET_ASSIGN(const auto catalog, open_catalog(program));
        return act(program, *catalog, *arguments);
      } else {
        RepositoryOptions options{.access = {}, .security = program.repository_security};
        if constexpr (std::is_invocable_v<Access, const Arguments&>) {
          options.access = access(*arguments);
        } else {
          options.access = access;
        }
        FRESHET_ASSIGN(const OpenedRepository repository, open_repository(program.repository, options));
        say_if_part(program, repository);
        return act(program, *repository, *arguments);
      }
    };
  });
}

/// MODEL, MODEL@V or MODEL@ALIAS, required; VersionCatalog::resolve() says which version that is.
void add_reference(CLI::App& command, const std::string& name, std::string& version, const std::string& description);
CLI::Validator reference_check();

/// "MODEL@V", or null for none.
Json version_json(const VersionName& name);
/// The number, or null for none (JSON has no NaN either).
Json quality_json(const std::optional<double>& quality);
/// Versions with their ancestors, as an array or as a table. `measure` heads the column of their qualities.
Json lineage_json(const std::vector<LineageRow>& versions);
std::string lineage_table(const std::vector<LineageRow>& versions, const std::string& measure = "QUALITY");

}  // namespace freshet::cli
