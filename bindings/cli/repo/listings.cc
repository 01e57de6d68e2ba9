// SPDX-License-Identifier: Apache-2.0
// `freshet repo ls` and `stat`: what there is.

#include <algorithm>

#include "bindings/cli/frame/arguments.h"
#include "bindings/cli/repo/repo.h"
#include "core/base/format.h"
#include "repo/local/side_by_side.h"

namespace freshet::cli {
namespace {

struct ListingsArguments {
  std::string model;
  std::vector<std::string> tags;
};

Result<bool> has_tags(const Repository& repository, const VersionName& name, const std::vector<std::string>& tags) {
  FRESHET_ASSIGN(const VersionRecord record, repository.get(name));
  const Tags& has = record.manifest.tags;
  return std::ranges::all_of(tags,
                             [&](const std::string& tag) { return std::ranges::find(has, tag_of(tag)) != has.end(); });
}

/// Of the model's versions those that have all the tags.
Result<std::vector<LineageRow>> chosen_versions(const Repository& repository, const std::string& model,
                                                const std::vector<std::string>& tags) {
  FRESHET_ASSIGN(std::vector<LineageRow> versions, repository.versions(model));
  if (tags.empty()) return versions;
  std::vector<LineageRow> chosen;
  for (LineageRow& row : versions) {
    if (row.retired) continue;
    FRESHET_ASSIGN(const bool has, has_tags(repository, row.version, tags));
    if (has) chosen.push_back(std::move(row));
  }
  return chosen;
}

/// A provider far away answers so many questions while one is on its way.
constexpr std::size_t kFactsAtOnce = 16;

/// What the listing tells of a version beside its row. Of a damaged record, nothing: `verify` tells of the damage.
struct Facts {
  std::uint64_t step = 0;
  Metrics metrics;
  std::int64_t created_unix_ns = 0;

  static Facts of(const Repository& repository, const VersionName& name) {
    const Result<VersionRecord> record = repository.get(name);
    if (!record) return {};
    return {record->manifest.step, record->manifest.metrics, record->manifest.created_unix_ns};
  }

  /// The loss, or else the first metric.
  std::string metric_text() const {
    if (metrics.empty()) return "-";
    const auto loss = std::ranges::find(metrics, "loss", &Metrics::value_type::first);
    const auto& [name, value] = loss == metrics.end() ? metrics.front() : *loss;
    return format("{} {:.6g}", printable(name), value);
  }
  void add_to(std::vector<std::string>& row) const {
    row.insert(row.end(), {format("{}", step), metric_text(), date_text(created_unix_ns)});
  }
  void add_to(Json& line) const {
    line["step"] = step;
    line["metrics"] = Json::object();
    for (const auto& [name, value] : metrics) line["metrics"][name] = value;
    line["created_ms"] = created_unix_ns / kNanosecondsPerMillisecond;
  }
};

std::string quality_text(const std::optional<double>& quality) { return quality ? format("{}", *quality) : "-"; }

Result<ExitCode> list_models(Program& program, const Repository& repository, const std::vector<std::string>& tags) {
  std::vector<std::vector<std::string>> rows = {{"MODEL", "VERSIONS", "NEWEST", "QUALITY"}};
  FRESHET_ASSIGN(const std::vector<std::string> models, repository.models());
  for (const std::string& model : models) {
    FRESHET_ASSIGN(const std::vector<LineageRow> versions, chosen_versions(repository, model, tags));
    std::size_t live = 0;
    const LineageRow* newest_row = nullptr;
    for (const LineageRow& row : versions) {
      if (row.retired) continue;
      ++live;
      newest_row = &row;
    }
    if (newest_row == nullptr) continue;
    const LineageRow& newest = *newest_row;
    rows.push_back({model, format("{}", live), to_string(newest.version), quality_text(newest.quality)});
    if (!program.out.json) continue;
    FRESHET_TRY(program.out.emit({{"model", model},
                                  {"versions", live},
                                  {"newest", newest.version.number},
                                  {"quality", quality_json(newest.quality)}},
                                 ""));
  }
  if (!program.out.json) FRESHET_TRY(program.out.write(table(rows) + "\n"));
  return ExitCode::done;
}

Result<ExitCode> list_versions(Program& program, const Repository& repository, const ListingsArguments& arguments) {
  const std::string& model = arguments.model;
  std::vector<std::vector<std::string>> rows = {
      {"VERSION", "ANCESTOR", "INHERITED", "OWN", "QUALITY", "STEP", "METRIC", "CREATED"}};
  FRESHET_ASSIGN(const std::vector<LineageRow> versions, chosen_versions(repository, model, arguments.tags));
  std::vector<Facts> facts(versions.size());
  FRESHET_TRY(run_side_by_side(versions.size(), kFactsAtOnce, [&](std::size_t at) -> Status {
    if (!versions[at].retired) facts[at] = Facts::of(repository, versions[at].version);
    return {};
  }));
  for (std::size_t at = 0; at < versions.size(); ++at) {
    const LineageRow& row = versions[at];
    rows.push_back({to_string(row.version) + (row.retired ? " (retired)" : ""),
                    row.ancestor.number == 0 ? "-" : to_string(row.ancestor), human_bytes(row.inherited_bytes),
                    human_bytes(row.own_bytes), quality_text(row.quality)});
    facts[at].add_to(rows.back());
    if (!program.out.json) continue;
    Json line = {{"model", model},
                 {"version", row.version.number},
                 {"ancestor", version_json(row.ancestor)},
                 {"inherited_bytes", row.inherited_bytes},
                 {"own_bytes", row.own_bytes},
                 {"quality", quality_json(row.quality)}};
    if (!row.retired) facts[at].add_to(line);
    if (row.retired) line["retired"] = true;
    FRESHET_TRY(program.out.emit(line, ""));
  }
  if (!program.out.json) FRESHET_TRY(program.out.write(table(rows) + "\n"));
  return ExitCode::done;
}

Result<ExitCode> list_contents(Program& program, Repository& repository, const ListingsArguments& arguments) {
  return arguments.model.empty() ? list_models(program, repository, arguments.tags)
                                 : list_versions(program, repository, arguments);
}

Result<ExitCode> stat(Program& program, Repository& repository, const ListingsArguments& /*none*/) {
  FRESHET_ASSIGN(const RepositoryStat stat, repository.stat());
  FRESHET_TRY(program.out.emit(
      {{"models", stat.models},
       {"versions", stat.versions},
       {"retired_versions", stat.retired_versions},
       {"live_tensors", stat.live_tensors},
       {"live_bytes", stat.live_bytes},
       {"disk_bytes", stat.disk_bytes},
       {"metadata_bytes", stat.metadata_bytes}},
      format("{} models, {} versions ({} more retired); {} tensors stored once, {}; {} on disk, {} of it metadata",
             stat.models, stat.versions, stat.retired_versions, stat.live_tensors, human_bytes(stat.live_bytes),
             human_bytes(stat.disk_bytes), human_bytes(stat.metadata_bytes))));
  return ExitCode::done;
}

}  // namespace

void add_listings(CLI::App& repo, Program& program) {
  auto arguments = std::make_shared<ListingsArguments>();
  CLI::App& ls = add_repo_command(repo, program, "ls", "the models, or the versions of one model");
  ls.add_option("MODEL", arguments->model, "list its versions, oldest first")->check(model_check());
  ls.add_option("--tag", arguments->tags, "only versions with this tag; repeatable")
      ->type_name("K=V")
      ->check(tag_check())
      ->allow_extra_args(false);
  ls.footer(
      "A line each: model, versions, newest, quality; or model, version, ancestor, inherited_bytes, own_bytes, "
      "quality;\n"
      "then step, metrics and created_ms, of the newest version or of this one.\n"
      "example: freshet repo ls net --tag data=v2");
  act_on_repository(ls, program, arguments, RepositoryAccess::read, list_contents);

  CLI::App& totals = add_repo_command(repo, program, "stat", "the numbers of models, versions, tensors and bytes");
  totals.footer(
      "A line of JSON: models, versions, retired_versions, live_tensors, live_bytes, disk_bytes, metadata_bytes.\n"
      "example: freshet repo stat");
  act_on_repository(totals, program, std::make_shared<ListingsArguments>(), RepositoryAccess::read, stat);
}

}  // namespace freshet::cli
