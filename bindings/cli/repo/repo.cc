// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/repo/repo.h"

#include <cstdlib>

#include "bindings/cli/frame/arguments.h"
#include "core/base/format.h"
#include "repo/levels/job_catalog.h"

namespace freshet::cli {

void add_repository_option(CLI::App& command, Program& program) {
  command.add_option("--repo", program.repository, "the repository's folder, or a server's address (or FRESHET_REPO)")
      ->type_name("FOLDER|ADDRESS");
}

CLI::App& add_repo_command(CLI::App& repo, Program& program, const std::string& name, const std::string& description) {
  CLI::App& command = *repo.add_subcommand(name, description);
  add_json_flag(command, program);
  add_repository_option(command, program);
  add_client_keys(command, program.repository_security);
  return command;
}

CLI::App& add_catalog_command(CLI::App& repo, Program& program, const std::string& name,
                              const std::string& description) {
  CLI::App& command = add_repo_command(repo, program, name, description);
  command.add_option("--local", program.local, "the folders of a job's ranks, in place of a repository")
      ->type_name("DIR");
  return command;
}

Result<std::shared_ptr<const VersionCatalog>> open_catalog(const Program& program) {
  using Catalog = std::shared_ptr<const VersionCatalog>;
  const auto open_job = [](std::vector<std::string> folders) -> Result<Catalog> {
    FRESHET_ASSIGN(auto job, levels::JobCatalog::open(std::move(folders)));
    return Catalog(std::move(job));
  };
  if (!program.local.empty()) return open_job(program.local);
  auto repository = open_repository(program.repository, {.access = {}, .security = program.repository_security});
  if (repository) {
    say_if_part(program, *repository);
    return Catalog(*std::move(repository));
  }
  if (repository.error().code() != Code::not_found) return fail(std::move(repository).error());
  Result<Catalog> job = open_job({program.repository});
  if (job) return job;
  return fail(std::move(repository).error());
}

void say_if_part(const Program& program, const OpenedRepository& repository) {
  if (is_repository_address(program.repository) || !is_part(repository)) return;
  program.out.log(format("{} is one provider of several, and it does not run: this answer is about its part only",
                         program.repository));
}

void require_repository(Program& program) {
  if (!program.local.empty() && !program.repository.empty()) throw CLI::ValidationError("give --repo or --local");
  if (!program.local.empty()) return;
  const char* environment = std::getenv("FRESHET_REPO");
  if (program.repository.empty() && environment != nullptr) program.repository = environment;
  if (program.repository.empty())
    throw CLI::ValidationError("give --repo FOLDER, or set FRESHET_REPO, to name the repository");
}

void add_reference(CLI::App& command, const std::string& name, std::string& version, const std::string& description) {
  command.add_option(name, version, description)->required()->check(reference_check());
}

CLI::Validator reference_check() {
  return CLI::Validator(
      [](std::string& text) {
        const Result<VersionReference> reference = parse_version_reference(text);
        return reference ? std::string() : reference.error().message();
      },
      "", "version");
}

Json version_json(const VersionName& name) { return name.number == 0 ? Json() : Json(to_string(name)); }

Json quality_json(const std::optional<double>& quality) { return quality ? Json(*quality) : Json(); }

Json lineage_json(const std::vector<LineageRow>& versions) {
  Json all = Json::array();
  for (const LineageRow& row : versions) {
    Json line = {{"version", version_json(row.version)},
                 {"ancestor", version_json(row.ancestor)},
                 {"inherited_bytes", row.inherited_bytes},
                 {"own_bytes", row.own_bytes},
                 {"quality", quality_json(row.quality)}};
    if (row.retired) line["retired"] = true;
    all.push_back(std::move(line));
  }
  return all;
}

std::string lineage_table(const std::vector<LineageRow>& versions, const std::string& measure) {
  std::vector<std::vector<std::string>> rows = {{"VERSION", "ANCESTOR", "INHERITED", "OWN", measure, ""}};
  for (const LineageRow& row : versions) {
    rows.push_back({to_string(row.version), row.ancestor.number == 0 ? "-" : to_string(row.ancestor),
                    human_bytes(row.inherited_bytes), human_bytes(row.own_bytes),
                    row.quality ? format("{}", *row.quality) : "-", row.retired ? "retired" : ""});
  }
  return table(rows);
}

void add_repo(CLI::App& root, Program& program) {
  CLI::App& repo = *root.add_subcommand("repo", "stored versions: put, get, match, list, retire");
  repo.require_subcommand(1);
  add_json_flag(repo, program);
  add_repository_option(repo, program);
  add_put(repo, program);
  add_get(repo, program);
  add_listings(repo, program);
  add_show(repo, program);
  add_match(repo, program);
  add_history(repo, program);
  add_compare(repo, program);
  add_pins(repo, program);
  add_set(repo, program);
  add_alias(repo, program);
  add_verify(repo, program);
  add_retire(repo, program);
  add_import(repo, program);
  add_export(repo, program);
  add_serve(repo, program);
}

}  // namespace freshet::cli
