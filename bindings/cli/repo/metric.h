// SPDX-License-Identifier: Apache-2.0
#pragma once

/// `--metric NAME`: a metric of the versions takes the place of their quality, in columns, orders, filters and colours.
/// Metrics stand in a version's record, so each version's record is read.

#include <CLI/CLI.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/model/manifest.h"
#include "repo/repository.h"

namespace freshet::cli {

/// The facts of a version that stand in its record alone.
struct VersionFacts {
  std::uint64_t step = 0;
  Metrics metrics;
  std::int64_t created_unix_ns = 0;
};

/// Of each row, several at a time. Nothing of a retired version, and nothing of a damaged record: `verify` tells of the
/// damage.
Result<std::vector<VersionFacts>> facts_of(const VersionCatalog& repository, const std::vector<LineageRow>& rows);

struct MetricChoice {
  std::string name;  ///< Empty: no metric was chosen.
  bool lower = false;
  bool higher = false;
  std::optional<double> at_least;
  std::optional<double> at_most;

  bool chosen() const { return !name.empty(); }
  /// As --lower or --higher say. Without them: true of a name with "loss" in it.
  bool lower_is_better() const;
  /// The metric, if the version has it and it is finite.
  std::optional<double> of(const Metrics& metrics) const;
  /// Whether --at-least and --at-most let it pass. They let no version pass that lacks the metric.
  bool admits(const std::optional<double>& value) const;
  /// True: `left` is the better value. No value is the worst one.
  bool better(const std::optional<double>& left, const std::optional<double>& right) const;
};

/// not_found, with the metrics that are there: no version has the chosen one, so its name is a slip. Versions without
/// any metric tell nothing.
Status check_known(const MetricChoice& choice, const std::vector<VersionFacts>& facts);
Status check_known(const MetricChoice& choice, const std::set<std::string>& names);

/// "loss" if a version has it, else the first metric of any; not chosen where there is none.
MetricChoice metric_of(const std::vector<VersionFacts>& facts);

/// Rows that a choice admits, in their order, each with its value as its quality.
struct MeasuredRows {
  std::vector<LineageRow> rows;               ///< As they were.
  std::vector<std::optional<double>> values;  ///< Of the same rows.
  std::vector<LineageRow> with_value_as_quality() const;
};
/// `facts` are those of the rows, in the same order. REQUIRES: choice.chosen().
MeasuredRows measured(const MetricChoice& choice, const std::vector<LineageRow>& rows,
                      const std::vector<VersionFacts>& facts);
/// The same, where nothing has been read yet.
Result<MeasuredRows> measured(const VersionCatalog& repository, const MetricChoice& choice,
                              const std::vector<LineageRow>& rows);

/// --metric, --lower, --higher, --at-least and --at-most.
void add_metric(CLI::App& command, MetricChoice& choice);
/// The same without the filters.
void add_metric_alone(CLI::App& command, MetricChoice& choice);

}  // namespace freshet::cli
