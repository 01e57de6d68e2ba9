// SPDX-License-Identifier: Apache-2.0
/// How good are schedules, judged afterwards? Every recorded and every synthetic learning curve, with cheap and with
/// dear publishing: the cumulative loss of each schedule over that of the best one that anybody could have chosen.
/// docs/schedules.md explains the tables.

#include <CLI/CLI.hpp>
#include <iostream>

#include "benchmarks/common/command_line.h"
#include "benchmarks/common/report.h"
#include "benchmarks/schedules/paper.h"
#include "benchmarks/schedules/series.h"
#include "benchmarks/schedules/summary.h"
#include "benchmarks/schedules/synthetic.h"
#include "core/base/format.h"

namespace freshet::benchmarks {
namespace {

struct Options : CommonOptions {
  std::string data = SCHEDULES_DATA;
  std::vector<std::string> only;
  std::string series;
};

bool wanted(const Options& options, const std::string& name) {
  if (options.only.empty()) return true;
  return std::find(options.only.begin(), options.only.end(), name) != options.only.end();
}

/// Halves are told before curves are picked, so that a curve's half does not depend on what else is asked for.
Result<std::vector<Case>> pick_cases(const Options& options) {
  FRESHET_ASSIGN(const auto recorded, read_curves(options.data));
  FRESHET_ASSIGN(std::vector<Case> cases, make_cases(recorded, synthetic_curves()));
  std::erase_if(cases, [&](const Case& one) { return !wanted(options, one.name.substr(0, one.name.find(' '))); });
  if (cases.empty()) return fail(Code::invalid_argument, "--only: no such curve");
  if (!options.quick) return cases;
  std::vector<Case> some;  // Every third curve, with both prices.
  for (std::size_t i = 0; i < cases.size(); ++i) {
    if (i / 2 % 3 == 0) some.push_back(std::move(cases[i]));
  }
  return some;
}

void fill(const std::vector<Played>& played, Report& report) {
  for (const Played& one : played) {
    for (const char* contender : kContenders) {
      report.add_row(one.of->name, contender, "of oracle", one.to_oracle(contender));
    }
    report.add_row(one.of->name, "publishes_online", "publishes",
                   static_cast<double>(one.outcomes.at(kOnline).rows.size()));
  }
  const std::map<std::string, std::string> prefixes = {{"all", ""},
                                                       {"recorded", "recorded_"},
                                                       {"recorded, tuned on", "tuned_on_"},
                                                       {"recorded, held back", "held_back_"},
                                                       {"synthetic", "synthetic_"}};
  for (const auto& [name, members] : groups_of(played)) {
    if (members.empty()) continue;
    const Summary summary = summarize(members);
    const std::string& prefix = prefixes.at(name);
    report.set_ratio(prefix + "online_median", summary.median.at(kOnline));
    report.set_ratio(prefix + "online_worst", summary.worst_online);
    report.set_ratio(prefix + "online_worst_overfitting", summary.worst_online_overfit);
    report.set_ratio(prefix + "online_to_epoch_worst", summary.worst_to_epoch);
    report.set_ratio(prefix + "online_not_above_epoch", summary.not_above_epoch);
    report.set_ratio(prefix + "online_to_fixed_median", summary.median_to_fixed);
  }
}

/// As docs/schedules.md has them.
Status print_tables(const Options& options, const std::vector<Played>& played) {
  std::cout << "### All cases together\n\n"
            << summary_table(played) << "\n### Case by case\n\n"
            << case_table(played) << "\n";
  if (!options.only.empty() || options.quick) return {};
  FRESHET_ASSIGN(const auto gains, paper_gains());
  std::cout << "### Viper's three settings\n\n" << paper_table(gains) << "\n";
  return {};
}

Status measure(const Options& options, Report& report) {
  FRESHET_ASSIGN(const std::vector<Case> cases, pick_cases(options));
  std::vector<Played> played;
  for (const Case& one : cases) {
    std::cerr << "schedules: " << one.name << "\n";
    auto outcomes = play(one);
    if (!outcomes) return fail(std::move(outcomes).error().with_context(one.name));
    played.push_back({.of = &one, .outcomes = *std::move(outcomes)});
  }
  fill(played, report);
  if (!options.series.empty()) FRESHET_TRY(write_series(options.series, played));
  return options.json ? Status() : print_tables(options, played);
}

}  // namespace
}  // namespace freshet::benchmarks

int main(int argc, char** argv) {
  using namespace freshet::benchmarks;
  Options options;
  CLI::App app("Cumulative loss of schedules on recorded learning curves, over the best possible one", "schedules");
  app.add_flag("--quick", options.quick, "A few curves, about a minute");
  app.add_flag("--json", options.json, "Print nothing but one JSON object");
  app.add_option("--data", options.data, "Folder of learning curves")->capture_default_str();
  app.add_option("--only", options.only, "Names of curves");
  app.add_option("--series", options.series, "Folder to write what plots.gp draws into");
  if (const auto code = ends_at_words(app, argc, argv)) return *code;
  // Its tables stand for the report's.
  return print_report("schedules", true, [&](Report& report) { return measure(options, report); });
}
