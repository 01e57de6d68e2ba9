// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What many cases come to: the figures by which `online` is judged, for each group of cases.

#include <map>
#include <string>
#include <vector>

#include "benchmarks/schedules/cases.h"
#include "benchmarks/schedules/contenders.h"

namespace freshet::benchmarks {

struct Played {
  const Case* of = nullptr;
  std::map<std::string, Outcome> outcomes;

  /// Its cumulative loss over the oracle's.
  double to_oracle(const std::string& contender) const;
  double online_to(const std::string& contender) const;
};

struct Summary {
  std::size_t cases = 0;
  std::map<std::string, double> median;  ///< To the oracle, by contender.
  double worst_online = 0;               ///< To the oracle; runs that overfit are left out.
  double worst_online_overfit = 0;       ///< Of those alone; NaN when there is none.
  double worst_to_epoch = 0;
  double not_above_epoch = 0;  ///< Share of the cases.
  double median_to_fixed = 0;
};

Summary summarize(const std::vector<const Played*>& played);

/// All, recorded, tuned on, held back, synthetic; each with cheap and dear together.
std::vector<std::pair<std::string, std::vector<const Played*>>> groups_of(const std::vector<Played>& played);

/// The two tables for people: a row per case, and a row per group.
std::string case_table(const std::vector<Played>& played);
std::string summary_table(const std::vector<Played>& played);

}  // namespace freshet::benchmarks
