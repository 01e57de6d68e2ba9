// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/repo/metric.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "bindings/cli/frame/arguments.h"
#include "core/base/format.h"
#include "core/base/text.h"
#include "repo/local/side_by_side.h"

namespace freshet::cli {
namespace {

/// A provider far away answers so many questions while one is on its way.
constexpr std::size_t kFactsAtOnce = 16;

char as_lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

}  // namespace

Result<std::vector<VersionFacts>> facts_of(const VersionCatalog& repository, const std::vector<LineageRow>& rows) {
  std::vector<VersionFacts> facts(rows.size());
  FRESHET_TRY(run_side_by_side(rows.size(), kFactsAtOnce, [&](std::size_t at) -> Status {
    if (rows[at].retired) return {};
    const Result<VersionRecord> record = repository.get(rows[at].version);
    if (!record) return {};
    const Manifest& manifest = record->manifest;
    facts[at] = {manifest.step, manifest.metrics, manifest.created_unix_ns};
    return {};
  }));
  return facts;
}

bool MetricChoice::lower_is_better() const {
  if (lower || higher) return lower;
  std::string small = name;
  std::ranges::transform(small, small.begin(), as_lower);
  return small.find("loss") != std::string::npos;
}

std::optional<double> MetricChoice::of(const Metrics& metrics) const {
  const auto found = std::ranges::find(metrics, name, &Metrics::value_type::first);
  if (found == metrics.end() || !std::isfinite(found->second)) return std::nullopt;
  return found->second;
}

bool MetricChoice::admits(const std::optional<double>& value) const {
  if (at_least && (!value || *value < *at_least)) return false;
  return !at_most || (value && *value <= *at_most);
}

bool MetricChoice::better(const std::optional<double>& left, const std::optional<double>& right) const {
  if (!left || !right) return left.has_value() && !right;
  return lower_is_better() ? *left < *right : *left > *right;
}

std::vector<LineageRow> MeasuredRows::with_value_as_quality() const {
  std::vector<LineageRow> changed = rows;
  for (std::size_t at = 0; at < changed.size(); ++at) changed[at].quality = values[at];
  return changed;
}

Status check_known(const MetricChoice& choice, const std::vector<VersionFacts>& facts) {
  std::set<std::string> names;
  for (const VersionFacts& one : facts) {
    for (const auto& [name, value] : one.metrics) names.insert(name);
  }
  return check_known(choice, names);
}

Status check_known(const MetricChoice& choice, const std::set<std::string>& names) {
  if (!choice.chosen() || names.empty() || names.contains(choice.name)) return {};
  constexpr std::size_t kNamesMax = 8;
  std::string known;
  for (auto name = names.begin(); name != names.end() && std::distance(names.begin(), name) < std::ptrdiff_t{kNamesMax};
       ++name) {
    known += (known.empty() ? "" : ", ") + shown(*name);
  }
  return fail(Code::not_found, format("no version here has a metric {}; here are: {}{}", shown(choice.name), known,
                                      names.size() > kNamesMax ? ", …" : ""));
}

MetricChoice metric_of(const std::vector<VersionFacts>& facts) {
  MetricChoice first;
  for (const VersionFacts& one : facts) {
    for (const auto& [name, value] : one.metrics) {
      if (name == "loss" || !first.chosen()) first.name = name;
      if (name == "loss") return first;
    }
  }
  return first;
}

Result<MeasuredRows> measured(const VersionCatalog& repository, const MetricChoice& choice,
                              const std::vector<LineageRow>& rows) {
  FRESHET_ASSIGN(const std::vector<VersionFacts> facts, facts_of(repository, rows));
  return measured(choice, rows, facts);
}

MeasuredRows measured(const MetricChoice& choice, const std::vector<LineageRow>& rows,
                      const std::vector<VersionFacts>& facts) {
  MeasuredRows all;
  for (std::size_t at = 0; at < rows.size(); ++at) {
    const std::optional<double> value = choice.of(facts[at].metrics);
    if (!choice.admits(value)) continue;
    all.rows.push_back(rows[at]);
    all.values.push_back(value);
  }
  return all;
}

void add_metric_alone(CLI::App& command, MetricChoice& choice) {
  CLI::Option* const metric =
      command.add_option("--metric", choice.name, "use this metric of the versions in place of their quality")
          ->type_name("NAME")
          ->check(CLI::Validator(
              [](std::string& name) { return name.empty() ? std::string("a metric has a name") : std::string(); }, ""));
  CLI::Option* const lower =
      command.add_flag("--lower", choice.lower, "a lower metric is better (default if its name has \"loss\" in it)")
          ->needs(metric);
  command.add_flag("--higher", choice.higher, "a higher metric is better (default for all other names)")
      ->needs(metric)
      ->excludes(lower);
}

void add_metric(CLI::App& command, MetricChoice& choice) {
  add_metric_alone(command, choice);
  CLI::Option* const metric = command.get_option("--metric");
  command.add_option("--at-least", choice.at_least, "only versions with a metric of at least X")
      ->type_name("X")
      ->check(number_check())
      ->needs(metric);
  command.add_option("--at-most", choice.at_most, "only versions with a metric of at most X")
      ->type_name("X")
      ->check(number_check())
      ->needs(metric);
}

}  // namespace freshet::cli
