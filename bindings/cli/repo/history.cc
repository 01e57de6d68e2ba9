// `freshet repo lineage` and `owners`: where a version came from, and who wrote each of its tensors. Both answer with
// one JSON array on one line.

#include "bindings/cli/arguments.h"
#include "bindings/cli/repo/repo.h"
#include "core/format.h"

namespace freshet::cli {
namespace {

struct Arguments {
  std::string version;
};

Result<ExitCode> lineage(Program& program, Repository& repository, const Arguments& arguments) {
  FRESHET_ASSIGN(const VersionName asked, repository.resolve(arguments.version));
  FRESHET_ASSIGN(const std::vector<LineageRow> chain, repository.lineage(asked));
  Json all = Json::array();
  std::vector<std::vector<std::string>> rows = {{"VERSION", "INHERITED", "OWN", "QUALITY", ""}};
  for (const LineageRow& row : chain) {
    Json line = {{"version", version_json(row.version)},
                 {"ancestor", version_json(row.ancestor)},
                 {"inherited_bytes", row.inherited_bytes},
                 {"own_bytes", row.own_bytes},
                 {"quality", quality_json(row.quality)}};
    if (row.retired) line["retired"] = true;
    all.push_back(std::move(line));
    rows.push_back({to_string(row.version), human_bytes(row.inherited_bytes), human_bytes(row.own_bytes),
                    row.quality ? format("{}", *row.quality) : "-", row.retired ? "retired" : ""});
  }
  FRESHET_TRY(program.out.emit(all, table(rows)));
  return ExitCode::done;
}

Result<ExitCode> owners(Program& program, Repository& repository, const Arguments& arguments) {
  FRESHET_ASSIGN(const VersionName asked, repository.resolve(arguments.version));
  FRESHET_ASSIGN(const VersionRecord record, repository.get(asked));
  FRESHET_ASSIGN(const std::vector<OwnerRow> map, repository.owners(record.manifest.name));
  const char* const nobody = record.has_weights ? "not stored here" : "nobody: it has no weights";
  Json all = Json::array();
  std::vector<std::vector<std::string>> rows = {{"TENSOR", "OWNER", "BYTES"}};
  for (const OwnerRow& row : map) {
    // A graph that was never trained names no bytes, whoever its record says would own them.
    const VersionName owner = record.has_weights ? row.owner : VersionName();
    all.push_back({{"tensor", row.tensor}, {"owner", version_json(owner)}, {"bytes", row.bytes}});
    rows.push_back({row.tensor, owner.number == 0 ? nobody : to_string(owner), format("{}", row.bytes)});
  }
  FRESHET_TRY(program.out.emit(all, table(rows)));
  return ExitCode::done;
}

}  // namespace

void add_history(CLI::App& repo, Program& program) {
  auto of_lineage = std::make_shared<Arguments>();
  CLI::App& ancestors = add_repo_command(repo, program, "lineage", "its ancestors, newest first");
  add_reference(ancestors, "MODEL[@V]", of_lineage->version, "of which; without @V the newest");
  ancestors.footer(
      "JSON: [{version, ancestor, inherited_bytes, own_bytes, quality}], a retired one with \"retired\":true");
  act_on_repository(ancestors, program, of_lineage, RepositoryAccess::read, lineage);

  auto of_owners = std::make_shared<Arguments>();
  CLI::App& writers = add_repo_command(repo, program, "owners", "which version wrote each tensor");
  add_reference(writers, "MODEL[@V]", of_owners->version, "of which; without @V the newest");
  writers.footer("JSON: [{tensor, owner, bytes}]");
  act_on_repository(writers, program, of_owners, RepositoryAccess::read, owners);
}

}  // namespace freshet::cli
