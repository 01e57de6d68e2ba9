// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/schedules/summary.h"

#include <algorithm>
#include <cmath>

#include "benchmarks/common/statistics.h"
#include "core/base/format.h"

namespace freshet::benchmarks {
namespace {

/// Rounding of the last place is not "above".
constexpr double kSame = 1 + 1e-9;

/// Between the middle two when their number is even: half the cases are cheap ones, so an upper or lower median would
/// be of either kind.
double median_of(std::vector<double> values) {
  if (values.empty()) return std::nan("");
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

std::string cell(double value) { return std::isfinite(value) ? format("{:.4f}", value) : "–"; }

}  // namespace

double Played::to_oracle(const std::string& contender) const {
  return outcomes.at(contender).loss / outcomes.at(kOracle).loss;
}

double Played::online_to(const std::string& contender) const {
  return outcomes.at(kOnline).loss / outcomes.at(contender).loss;
}

Summary summarize(const std::vector<const Played*>& played) {
  Summary summary{.cases = played.size(), .worst_online = std::nan(""), .worst_online_overfit = std::nan("")};
  for (const char* contender : kContenders) {
    std::vector<double> ratios;
    for (const Played* one : played) ratios.push_back(one->to_oracle(contender));
    summary.median[contender] = median_of(std::move(ratios));
  }
  std::vector<double> to_fixed;
  std::size_t not_above = 0;
  for (const Played* one : played) {
    double& worst = one->of->overfits ? summary.worst_online_overfit : summary.worst_online;
    worst = std::fmax(worst, one->to_oracle(kOnline));
    summary.worst_to_epoch = std::max(summary.worst_to_epoch, one->online_to(kEpoch));
    if (one->online_to(kEpoch) <= kSame) ++not_above;
    to_fixed.push_back(one->online_to(kFixed));
  }
  summary.median_to_fixed = median_of(std::move(to_fixed));
  summary.not_above_epoch =
      static_cast<double>(not_above) / static_cast<double>(std::max<std::size_t>(played.size(), 1));
  return summary;
}

std::vector<std::pair<std::string, std::vector<const Played*>>> groups_of(const std::vector<Played>& played) {
  std::vector<std::pair<std::string, std::vector<const Played*>>> groups = {
      {"all", {}}, {"recorded", {}}, {"recorded, tuned on", {}}, {"recorded, held back", {}}, {"synthetic", {}}};
  for (const Played& one : played) {
    groups[0].second.push_back(&one);
    if (one.of->group == Group::synthetic) {
      groups[4].second.push_back(&one);
    } else {
      groups[1].second.push_back(&one);
      groups[one.of->group == Group::tuned_on ? 2 : 3].second.push_back(&one);
    }
  }
  return groups;
}

std::string case_table(const std::vector<Played>& played) {
  std::string text =
      "| case | epoch | best every | fixed | greedy | optimal | online | publishes: epoch, online, oracle |\n";
  text += "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n";
  for (const Played& one : played) {
    text += format("| {} |", one.of->name);
    for (const char* contender : kContenders) text += format(" {} |", cell(one.to_oracle(contender)));
    text += format(" {}, {}, {} |\n", one.outcomes.at(kEpoch).rows.size(), one.outcomes.at(kOnline).rows.size(),
                   one.outcomes.at(kOracle).rows.size());
  }
  return text;
}

std::string summary_table(const std::vector<Played>& played) {
  std::string text =
      "| cases | n | epoch | best every | fixed | greedy | optimal | online, median | worst | worst, overfitting | "
      "worst "
      "to epoch | not above epoch | to fixed, median |\n"
      "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n";
  for (const auto& [name, members] : groups_of(played)) {
    if (members.empty()) continue;
    const Summary summary = summarize(members);
    text += format("| {} | {} |", name, summary.cases);
    for (const char* contender : kContenders) text += format(" {} |", cell(summary.median.at(contender)));
    text += format(" {} | {} | {} | {:.0f} % | {} |\n", cell(summary.worst_online), cell(summary.worst_online_overfit),
                   cell(summary.worst_to_epoch), 100 * summary.not_above_epoch, cell(summary.median_to_fixed));
  }
  return text;
}

}  // namespace freshet::benchmarks
