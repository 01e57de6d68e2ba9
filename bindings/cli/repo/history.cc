// SPDX-License-Identifier: Apache-2.0
// `freshet repo lineage`, `descendants`, `contributors` and `owners`: where a version came from, what came from it, and
// who wrote its tensors. Each answers with one JSON array on one line.

#include <algorithm>

#include "bindings/cli/frame/arguments.h"
#include "bindings/cli/frame/durable_file.h"
#include "bindings/cli/repo/metric.h"
#include "bindings/cli/repo/repo.h"
#include "core/base/format.h"
#include "repo/lineage/lineage_drawing.h"

namespace freshet::cli {
namespace {

struct HistoryArguments {
  std::string version;
  bool all = false;
  std::string dot;
  std::string svg;
  MetricChoice metric;
  bool draws() const { return !dot.empty() || !svg.empty(); }
};

Status draw(const std::vector<LineageRow>& rows, const HistoryArguments& arguments, const MetricChoice& metric) {
  LineageDrawing drawing{.title = arguments.version};
  if (metric.chosen()) {
    drawing.measure = metric.name;
    drawing.lower_is_better = metric.lower_is_better();
  }
  if (!arguments.dot.empty()) FRESHET_TRY(write_text_file(arguments.dot, lineage_dot(rows, drawing)));
  if (!arguments.svg.empty()) FRESHET_TRY(write_text_file(arguments.svg, lineage_svg(rows, drawing)));
  return {};
}

/// Prints the rows, and draws them where that was asked for, with `root` if there is one.
Result<ExitCode> tell(Program& program, const VersionCatalog& repository, const std::vector<LineageRow>& versions,
                      const HistoryArguments& arguments, const std::optional<LineageRow>& root = std::nullopt) {
  std::vector<LineageRow> drawn = versions;
  if (root) drawn.insert(drawn.begin(), *root);
  if (!arguments.metric.chosen()) {
    const auto has_quality = [](const LineageRow& row) { return row.quality.has_value(); };
    if (arguments.draws() && std::ranges::none_of(drawn, has_quality)) {
      // As the report does: a loop that publishes gives its versions metrics, and no quality.
      FRESHET_ASSIGN(const std::vector<VersionFacts> facts, facts_of(repository, drawn));
      const MetricChoice metric = metric_of(facts);
      if (metric.chosen()) drawn = measured(metric, drawn, facts).with_value_as_quality();
      FRESHET_TRY(draw(drawn, arguments, metric));
    } else {
      FRESHET_TRY(draw(drawn, arguments, MetricChoice()));
    }
    FRESHET_TRY(program.out.emit(lineage_json(versions), program.out.json ? "" : lineage_table(versions)));
    return ExitCode::done;
  }
  FRESHET_ASSIGN(const std::vector<VersionFacts> facts, facts_of(repository, versions));
  FRESHET_TRY(check_known(arguments.metric, facts));
  if (arguments.draws()) {
    FRESHET_ASSIGN(const MeasuredRows picture, measured(repository, arguments.metric, drawn));
    FRESHET_TRY(draw(picture.with_value_as_quality(), arguments, arguments.metric));
  }
  const MeasuredRows listed = measured(arguments.metric, versions, facts);
  Json json = lineage_json(listed.rows);
  for (std::size_t at = 0; at < json.size(); ++at) json[at]["metric"] = quality_json(listed.values[at]);
  FRESHET_TRY(program.out.emit(json, lineage_table(listed.with_value_as_quality(), printable(arguments.metric.name))));
  return ExitCode::done;
}

Result<ExitCode> lineage(Program& program, const VersionCatalog& repository, const HistoryArguments& arguments) {
  std::vector<LineageRow> versions;
  if (arguments.all) {
    FRESHET_ASSIGN(versions, all_versions(repository));
  } else {
    FRESHET_ASSIGN(const VersionName name, repository.resolve(arguments.version));
    FRESHET_ASSIGN(versions, repository.lineage(name));
  }
  return tell(program, repository, versions, arguments);
}

Result<ExitCode> descendants(Program& program, Repository& repository, const HistoryArguments& arguments) {
  FRESHET_ASSIGN(const VersionName name, repository.resolve(arguments.version));
  FRESHET_ASSIGN(const std::vector<LineageRow> versions, repository.descendants(name));
  if (!arguments.draws()) return tell(program, repository, versions, arguments);
  FRESHET_ASSIGN(const std::vector<LineageRow> line, repository.lineage(name));
  return tell(program, repository, versions, arguments, line.front());
}

Result<ExitCode> contributors(Program& program, Repository& repository, const HistoryArguments& arguments) {
  FRESHET_ASSIGN(const VersionName name, repository.resolve(arguments.version));
  FRESHET_ASSIGN(const std::vector<ContributorRow> writers, repository.contributors(name));
  Json all = Json::array();
  std::vector<std::vector<std::string>> rows = {{"VERSION", "TENSORS", "BYTES", ""}};
  for (const ContributorRow& writer : writers) {
    Json line = {{"version", version_json(writer.version)},
                 {"tensors", writer.tensor_count},
                 {"bytes", writer.bytes},
                 {"ancestor", writer.is_ancestor},
                 {"names", writer.tensors}};
    if (writer.retired) line["retired"] = true;
    all.push_back(std::move(line));
    std::string remark = writer.is_ancestor ? "" : "no ancestor";
    if (writer.retired) remark += remark.empty() ? "retired" : ", retired";
    rows.push_back({writer.version.number == 0 ? "not known here" : to_string(writer.version),
                    format("{}", writer.tensor_count), human_bytes(writer.bytes), remark});
  }
  FRESHET_TRY(program.out.emit(all, table(rows)));
  return ExitCode::done;
}

Result<ExitCode> owners(Program& program, const VersionCatalog& repository, const HistoryArguments& arguments) {
  FRESHET_ASSIGN(const VersionName name, repository.resolve(arguments.version));
  FRESHET_ASSIGN(const VersionRecord record, repository.get(name));
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

void add_drawings(CLI::App& command, HistoryArguments& arguments) {
  command.add_option("--svg", arguments.svg, "also draw the versions as an image for a browser")->type_name("FILE");
  command.add_option("--dot", arguments.dot, "also write the versions as a graph for Graphviz")->type_name("FILE");
  add_metric(command, arguments.metric);
}

void add_lineage(CLI::App& repo, Program& program) {
  auto arguments = std::make_shared<HistoryArguments>();
  CLI::App& command = add_catalog_command(repo, program, "lineage", "a version and its ancestors, newest first");
  CLI::Option* const version =
      command.add_option("MODEL[@V]", arguments->version, "the version; without @V the newest")
          ->check(reference_check());
  command.add_flag("--all", arguments->all, "every version of the models that have one that is not retired, by name")
      ->excludes(version);
  add_drawings(command, *arguments);
  command.footer(
      "JSON: [{version, ancestor, inherited_bytes, own_bytes, quality}], a retired version with \"retired\":true;\n"
      "with --metric also metric. Drawings: colours show the quality or the metric; retired versions are dashed.\n"
      "example: freshet repo lineage --all --svg search.svg --metric val_loss");
  act_on_repository(command, program, arguments, RepositoryAccess::read, lineage, [](const HistoryArguments& given) {
    if (given.all == !given.version.empty()) throw CLI::ValidationError("lineage: give MODEL[@V] or --all");
  });
}

}  // namespace

void add_history(CLI::App& repo, Program& program) {
  add_lineage(repo, program);

  auto of_descendants = std::make_shared<HistoryArguments>();
  CLI::App& children =
      add_repo_command(repo, program, "descendants", "all versions that came from a version, children first");
  add_reference(children, "MODEL[@V]", of_descendants->version, "the version; without @V the newest");
  add_drawings(children, *of_descendants);
  children.footer(
      "JSON: as lineage. A drawing also shows the version itself.\n"
      "example: freshet repo descendants net@1 --svg family.svg");
  act_on_repository(children, program, of_descendants, RepositoryAccess::read, descendants);

  auto of_contributors = std::make_shared<HistoryArguments>();
  CLI::App& writers = add_repo_command(repo, program, "contributors", "the versions that wrote a version's tensors");
  add_reference(writers, "MODEL[@V]", of_contributors->version, "the version; without @V the newest");
  writers.footer(
      "The version itself first (if it wrote any), then its ancestors from the nearest on, then others. JSON:\n"
      "[{version, tensors, bytes, ancestor, names}]; version is null for a version that is not known here.\n"
      "example: freshet repo contributors net");
  act_on_repository(writers, program, of_contributors, RepositoryAccess::read, contributors);

  auto of_owners = std::make_shared<HistoryArguments>();
  CLI::App& owner_map = add_catalog_command(repo, program, "owners", "for each tensor the version that wrote it");
  add_reference(owner_map, "MODEL[@V]", of_owners->version, "the version; without @V the newest");
  owner_map.footer(
      "JSON: [{tensor, owner, bytes}]; owner is null if no bytes are stored.\n"
      "example: freshet repo owners net@3");
  act_on_repository(owner_map, program, of_owners, RepositoryAccess::read, owners);
}

}  // namespace freshet::cli
