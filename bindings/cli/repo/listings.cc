// SPDX-License-Identifier: Apache-2.0
// `freshet repo ls` and `stat`: what there is.

#include <algorithm>

#include "bindings/cli/frame/arguments.h"
#include "bindings/cli/repo/metric.h"
#include "bindings/cli/repo/repo.h"
#include "core/base/format.h"

namespace freshet::cli {
namespace {

struct ListingsArguments {
  std::string model;
  std::vector<std::string> tags;
  MetricChoice metric;
};

Result<bool> has_tags(const VersionCatalog& repository, const VersionName& name, const std::vector<std::string>& tags) {
  FRESHET_ASSIGN(const VersionRecord record, repository.get(name));
  const Tags& has = record.manifest.tags;
  return std::ranges::all_of(tags,
                             [&](const std::string& tag) { return std::ranges::find(has, tag_of(tag)) != has.end(); });
}

/// Of the model's versions those that have all the tags.
Result<std::vector<LineageRow>> chosen_versions(const VersionCatalog& repository, const std::string& model,
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

/// The loss, or else the first metric.
std::string metric_text(const Metrics& metrics) {
  if (metrics.empty()) return "-";
  const auto loss = std::ranges::find(metrics, "loss", &Metrics::value_type::first);
  const auto& [name, value] = loss == metrics.end() ? metrics.front() : *loss;
  return format("{} {:.6g}", printable(name), value);
}

void add_facts(Json& line, const VersionFacts& facts) {
  line["step"] = facts.step;
  line["metrics"] = Json::object();
  for (const auto& [name, value] : facts.metrics) line["metrics"][name] = value;
  line["created_ms"] = facts.created_unix_ns / kNanosecondsPerMillisecond;
}

std::string quality_text(const std::optional<double>& quality) { return quality ? format("{}", *quality) : "-"; }

/// A line of the models' list.
struct ListedModel {
  ModelRow row;
  VersionNumber best = 0;       ///< With a metric alone.
  std::optional<double> value;  ///< The best one's.
};

/// Of the models those that have versions to be listed.
Result<std::vector<ListedModel>> listed_models(const VersionCatalog& repository, const ListingsArguments& arguments) {
  FRESHET_ASSIGN(std::vector<ModelRow> rows, repository.model_rows());
  std::vector<ListedModel> all;
  all.reserve(rows.size());
  for (ModelRow& row : rows) all.push_back({.row = std::move(row)});
  if (arguments.tags.empty() && !arguments.metric.chosen()) return all;
  for (ListedModel& listed : all) {
    FRESHET_ASSIGN(std::vector<LineageRow> versions, chosen_versions(repository, listed.row.model, arguments.tags));
    std::erase_if(versions, [](const LineageRow& row) { return row.retired; });
    if (arguments.metric.chosen()) {
      FRESHET_ASSIGN(MeasuredRows measured_rows, measured(repository, arguments.metric, versions));
      versions = std::move(measured_rows.rows);
      for (std::size_t at = 0; at < versions.size(); ++at) {
        if (!arguments.metric.better(measured_rows.values[at], listed.value)) continue;
        listed.value = measured_rows.values[at];
        listed.best = versions[at].version.number;
      }
    }
    listed.row.versions = versions.size();
    if (versions.empty()) continue;
    listed.row.newest = versions.back().version.number;
    listed.row.quality = versions.back().quality;
  }
  std::erase_if(all, [](const ListedModel& listed) { return listed.row.versions == 0; });
  if (arguments.metric.chosen()) {
    std::ranges::stable_sort(
        all, [&](const ListedModel& a, const ListedModel& b) { return arguments.metric.better(a.value, b.value); });
  }
  return all;
}

Result<ExitCode> list_models(Program& program, const VersionCatalog& repository, const ListingsArguments& arguments) {
  const MetricChoice& metric = arguments.metric;
  FRESHET_ASSIGN(std::vector<ListedModel> all, listed_models(repository, arguments));
  std::vector<std::vector<std::string>> rows = {{"MODEL", "VERSIONS", "NEWEST", "QUALITY"}};
  if (metric.chosen()) rows.front().insert(rows.front().end(), {"BEST", printable(metric.name)});
  for (ListedModel& one : all) {
    ModelRow& row = one.row;
    if (program.out.json) {
      Json line = {{"model", row.model},
                   {"versions", row.versions},
                   {"newest", row.newest},
                   {"quality", quality_json(row.quality)}};
      if (metric.chosen()) {
        line["best"] = one.value ? Json(one.best) : Json();
        line["metric"] = quality_json(one.value);
      }
      FRESHET_TRY(program.out.emit(line, ""));
      continue;
    }
    const auto name_of = [&](VersionNumber number) { return to_string(VersionName{row.model, number}); };
    std::string newest = name_of(row.newest);
    std::string best = one.value ? name_of(one.best) : "-";
    rows.push_back({std::move(row.model), format("{}", row.versions), std::move(newest), quality_text(row.quality)});
    if (metric.chosen()) rows.back().insert(rows.back().end(), {std::move(best), quality_text(one.value)});
  }
  if (!program.out.json) FRESHET_TRY(program.out.write(table(rows) + "\n"));
  return ExitCode::done;
}

/// Indices of the versions that the metric admits, the best first; all, as they are, without a metric.
std::vector<std::size_t> listed_order(const MetricChoice& metric, const std::vector<VersionFacts>& facts) {
  std::vector<std::size_t> order;
  for (std::size_t at = 0; at < facts.size(); ++at) {
    if (!metric.chosen() || metric.admits(metric.of(facts[at].metrics))) order.push_back(at);
  }
  if (metric.chosen()) {
    std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
      return metric.better(metric.of(facts[a].metrics), metric.of(facts[b].metrics));
    });
  }
  return order;
}

Result<ExitCode> list_versions(Program& program, const VersionCatalog& repository, const ListingsArguments& arguments) {
  const MetricChoice& metric = arguments.metric;
  std::vector<std::vector<std::string>> rows = {{"VERSION", "ANCESTOR", "INHERITED", "OWN", "QUALITY", "STEP",
                                                 metric.chosen() ? printable(metric.name) : "METRIC", "CREATED"}};
  FRESHET_ASSIGN(const std::vector<LineageRow> versions, chosen_versions(repository, arguments.model, arguments.tags));
  FRESHET_ASSIGN(const std::vector<VersionFacts> facts, facts_of(repository, versions));
  FRESHET_TRY(check_known(metric, facts));
  for (const std::size_t at : listed_order(metric, facts)) {
    const LineageRow& row = versions[at];
    const std::optional<double> value = metric.of(facts[at].metrics);
    rows.push_back({to_string(row.version) + (row.retired ? " (retired)" : ""),
                    row.ancestor.number == 0 ? "-" : to_string(row.ancestor), human_bytes(row.inherited_bytes),
                    human_bytes(row.own_bytes), quality_text(row.quality), format("{}", facts[at].step),
                    metric.chosen() ? quality_text(value) : metric_text(facts[at].metrics),
                    date_text(facts[at].created_unix_ns)});
    if (!program.out.json) continue;
    Json line = {{"model", arguments.model},
                 {"version", row.version.number},
                 {"ancestor", version_json(row.ancestor)},
                 {"inherited_bytes", row.inherited_bytes},
                 {"own_bytes", row.own_bytes},
                 {"quality", quality_json(row.quality)}};
    if (!row.retired) add_facts(line, facts[at]);
    if (metric.chosen()) line["metric"] = quality_json(value);
    if (row.retired) line["retired"] = true;
    FRESHET_TRY(program.out.emit(line, ""));
  }
  if (!program.out.json) FRESHET_TRY(program.out.write(table(rows) + "\n"));
  return ExitCode::done;
}

Result<ExitCode> list_contents(Program& program, const VersionCatalog& repository, const ListingsArguments& arguments) {
  return arguments.model.empty() ? list_models(program, repository, arguments)
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
  CLI::App& ls = add_catalog_command(repo, program, "ls", "the models, or the versions of one model");
  ls.add_option("MODEL", arguments->model, "list its versions, oldest first")->check(model_check());
  ls.add_option("--tag", arguments->tags, "only versions with this tag; repeatable")
      ->type_name("K=V")
      ->check(tag_check())
      ->allow_extra_args(false);
  add_metric(ls, arguments->metric);
  ls.footer(
      "A line each: model, versions, newest, quality; or model, version, ancestor, inherited_bytes, own_bytes, "
      "quality;\n"
      "then step, metrics and created_ms. With --metric the best come first, and a line also has metric, of a model\n"
      "its best version's, and best.\n"
      "example: freshet repo ls net --metric val_loss --at-most 0.5");
  act_on_repository(ls, program, arguments, RepositoryAccess::read, list_contents);

  CLI::App& totals = add_repo_command(repo, program, "stat", "the numbers of models, versions, tensors and bytes");
  totals.footer(
      "A line of JSON: models, versions, retired_versions, live_tensors, live_bytes, disk_bytes, metadata_bytes.\n"
      "example: freshet repo stat");
  act_on_repository(totals, program, std::make_shared<ListingsArguments>(), RepositoryAccess::read, stat);
}

}  // namespace freshet::cli
