// SPDX-License-Identifier: Apache-2.0
// `freshet repo match`: the stored versions that share the longest prefix with a graph.

#include <algorithm>

#include "bindings/cli/frame/arguments.h"
#include "bindings/cli/frame/graph_file.h"
#include "bindings/cli/repo/batch.h"
#include "bindings/cli/repo/metric.h"
#include "bindings/cli/repo/repo.h"
#include "core/base/format.h"
#include "repo/match/explain.h"

namespace freshet::cli {
namespace {

struct MatchArguments {
  std::string graph;
  std::string batch;
  std::string objective = "layers";
  std::uint32_t top = 1;
  bool any = false;
  bool explain = false;
  std::optional<double> least_quality;
  std::vector<std::string> tags;
  std::string exclude;
  std::string pin_by;
  MetricChoice metric;
};

MatchQuery query_of(const MatchArguments& arguments, const Architecture& graph) {
  MatchQuery query{.graph = MatchGraph::of(graph),
                   .objective = *objective_named(arguments.objective),
                   .top = arguments.metric.chosen() ? kMatchTopMax : arguments.top,
                   .any = arguments.any,
                   .least_quality = arguments.least_quality,
                   .pin_by = arguments.pin_by,
                   .pin_terms = {.stays = true, .lease = {}}};
  for (const std::string& tag : arguments.tags) query.tags.push_back(tag_of(tag));
  if (!arguments.exclude.empty()) query.exclude_lineage = version_of(arguments.exclude);
  return query;
}

Json row_json(const MatchRow& row) {
  return {{"model", row.version.model},   {"version", row.version.number},
          {"lcp_layers", row.lcp.layers}, {"lcp_parametric_layers", row.lcp.parametric_layers},
          {"lcp_bytes", row.lcp.bytes},   {"quality", quality_json(row.quality)}};
}

/// What match() answered as the metric orders it: among versions with equal prefixes the better metric wins, then the
/// order stays. The values are those of the rows.
Result<std::vector<std::optional<double>>> order_by_metric(const Repository& repository,
                                                           const MatchArguments& arguments, MatchAnswer& answer) {
  const Objective objective = *objective_named(arguments.objective);
  std::vector<MatchRow> kept;
  std::vector<std::optional<double>> values;
  for (auto from = answer.top.begin(); from != answer.top.end() && kept.size() < arguments.top;) {
    const auto to = std::find_if(from, answer.top.end(), [&](const MatchRow& row) {
      return weight(objective, row.lcp) != weight(objective, from->lcp);
    });
    std::vector<LineageRow> equals;
    for (auto row = from; row != to; ++row) equals.push_back({.version = row->version});
    FRESHET_ASSIGN(const std::vector<VersionFacts> facts, facts_of(repository, equals));
    std::vector<std::pair<std::optional<double>, MatchRow>> group;
    for (std::size_t at = 0; at < equals.size(); ++at) {
      const std::optional<double> value = arguments.metric.of(facts[at].metrics);
      if (arguments.metric.admits(value)) group.emplace_back(value, from[static_cast<std::ptrdiff_t>(at)]);
    }
    std::ranges::stable_sort(group,
                             [&](const auto& a, const auto& b) { return arguments.metric.better(a.first, b.first); });
    for (const auto& [value, row] : group) {
      if (kept.size() == arguments.top) break;
      values.push_back(value);
      kept.push_back(row);
    }
    from = to;
  }
  answer.top = std::move(kept);
  return values;
}

/// Each layer of the graph beside what it matches in the best version, or why it does not.
Result<Json> explanation(const Repository& repository, const Architecture& graph, const MatchAnswer& answer) {
  if (answer.top.empty()) return Json();
  FRESHET_ASSIGN(const VersionRecord record, repository.get(answer.top.front().version));
  const Architecture& stored = *record.manifest.architecture;
  Json steps = Json::array();
  for (const MatchStep& step : explain_match(graph, stored)) {
    Json line = {{"layer", graph.layers()[step.layer].name},
                 {"class", graph.layers()[step.layer].class_name},
                 {"matches", step.stored ? Json(stored.layers()[*step.stored].name) : Json()},
                 {"counted", step.counted}};
    if (!step.stored) line["why_not"] = step.why_not;
    steps.push_back(std::move(line));
  }
  return steps;
}

Result<Json> answer_json(Repository& repository, const MatchArguments& arguments, const Architecture& graph) {
  FRESHET_ASSIGN(MatchAnswer answer, repository.match(query_of(arguments, graph)));
  std::vector<std::optional<double>> values;
  if (arguments.metric.chosen()) {
    FRESHET_ASSIGN(values, order_by_metric(repository, arguments, answer));
  }
  Json top = Json::array();
  for (const MatchRow& row : answer.top) {
    top.push_back(row_json(row));
    if (arguments.metric.chosen()) top.back()["metric"] = quality_json(values[top.size() - 1]);
  }
  Json json = {{"best", top.empty() ? Json() : top.front()}, {"top", std::move(top)}, {"as_of", answer.as_of}};
  if (!answer.without.empty()) json["without"] = answer.without;
  for (const MatchAnswer::At& at : answer.providers) json["providers"][at.provider] = at.as_of;
  if (arguments.explain) {
    FRESHET_ASSIGN(json["explain"], explanation(repository, graph, answer));
  }
  return json;
}

std::string text_of(const Json& value) {
  if (value.is_null()) return "-";
  return printable(value.is_string() ? value.get<std::string>() : to_line(value));
}

/// A line for each provider that could not be asked, so that nobody takes the answer for all there is.
std::string missing_text(const Json& answer) {
  std::string text;
  if (!answer.contains("without")) return text;
  for (const Json& why : answer["without"]) text += "\nwithout " + text_of(why);
  return text;
}

std::string answer_text(const Json& answer, const MetricChoice& metric) {
  if (answer["best"].is_null()) return "no version shares a layer with the graph" + missing_text(answer);
  std::vector<std::vector<std::string>> rows = {
      {"VERSION", "LAYERS", "PARAMETRIC", "BYTES", metric.chosen() ? printable(metric.name) : "QUALITY"}};
  for (const Json& row : answer["top"]) {
    rows.push_back({format("{}@{}", text_of(row["model"]), text_of(row["version"])), text_of(row["lcp_layers"]),
                    text_of(row["lcp_parametric_layers"]), human_bytes(row["lcp_bytes"].get<std::uint64_t>()),
                    text_of(row[metric.chosen() ? "metric" : "quality"])});
  }
  std::string text = table(rows) + missing_text(answer);
  if (!answer.contains("explain")) return text;
  std::vector<std::vector<std::string>> steps = {{"LAYER", "CLASS", "MATCHES"}};
  for (const Json& step : answer["explain"]) {
    const bool matches = !step["matches"].is_null();
    steps.push_back({text_of(step["layer"]), text_of(step["class"]),
                     matches ? text_of(step["matches"]) : "- " + text_of(step["why_not"])});
  }
  return text + "\n\n" + table(steps);
}

Result<ExitCode> match(Program& program, Repository& repository, const MatchArguments& arguments) {
  if (!arguments.batch.empty()) {
    return for_each_line(
        program, arguments.batch,
        [&](const std::string& line) -> Result<Json> {
          FRESHET_ASSIGN(const auto graph, parse_graph_json(line));
          return answer_json(repository, arguments, *graph);
        },
        [&](const Json& answer) { return answer_text(answer, arguments.metric); });
  }
  FRESHET_ASSIGN(const auto graph, read_graph(arguments.graph));
  FRESHET_ASSIGN(const Json answer, answer_json(repository, arguments, *graph));
  FRESHET_TRY(program.out.emit(answer, program.out.json ? "" : answer_text(answer, arguments.metric)));
  return ExitCode::done;
}

void add_filters(CLI::App& command, MatchArguments& arguments) {
  command.add_flag("--any", arguments.any, "also graphs that were never trained");
  command.add_option("--min-quality", arguments.least_quality, "only versions with a quality of at least Q")
      ->type_name("Q")
      ->check(number_check());
  command.add_option("--tag", arguments.tags, "only versions with this tag; repeatable")
      ->type_name("K=V")
      ->check(tag_check())
      ->allow_extra_args(false);
  command.add_option("--exclude", arguments.exclude, "leave out this version and its ancestors")
      ->type_name("MODEL[@V]")
      ->check(version_check());
  add_metric(command, arguments.metric);
}

}  // namespace

void add_match(CLI::App& repo, Program& program) {
  auto arguments = std::make_shared<MatchArguments>();
  CLI::App& command =
      add_repo_command(repo, program, "match", "the versions that share the longest prefix with a graph");
  command.add_option("--graph", arguments->graph, "the candidate: a graph file")->type_name("G.json");
  command
      .add_option("--batch", arguments->batch, "one graph per line in, one answer per line out, in order; - is stdin")
      ->type_name("FILE.jsonl");
  command.add_option("--objective", arguments->objective, "what to maximise: layers, parametric layers or bytes")
      ->check(CLI::IsMember({"layers", "parametric", "bytes"}))
      ->capture_default_str();
  command.add_option("--top", arguments->top, "the number of versions to list, the best first")
      ->type_name("K")
      ->check(CLI::Range(std::uint32_t{1}, kMatchTopMax))
      ->capture_default_str();
  add_filters(command, *arguments);
  command.add_option("--pin", arguments->pin_by, "pin the best version under this name before the answer")
      ->type_name("NAME");
  command.add_flag("--explain", arguments->explain, "each layer with its match, or the reason why there is none");
  command.footer(
      "Among equal versions, the better metric wins with --metric, then the higher quality, then the later put, then\n"
      "the smaller name. JSON: best, top, as_of, with several providers also providers and without, and explain.\n"
      "example: freshet repo match --graph candidate.json --top 3 --explain");
  const auto access = [](const MatchArguments& given) {
    return given.pin_by.empty() ? RepositoryAccess::read : RepositoryAccess::write;
  };
  act_on_repository(command, program, arguments, access, match, [](const MatchArguments& given) {
    if (given.graph.empty() == given.batch.empty()) throw CLI::ValidationError("match: give either --graph or --batch");
    // A pin comes before the answer: it would hold the version of the best quality.
    if (given.metric.chosen() && !given.pin_by.empty())
      throw CLI::ValidationError("match: --pin pins by quality; leave out --metric, or pin the answer with repo pin");
  });
}

}  // namespace freshet::cli
