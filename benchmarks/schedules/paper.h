// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Viper's three settings (Table 1, Figure 10), as far as the paper tells: its loss curves are not published, so a
/// shape is assumed, and how the gains move with it is shown.

#include <string>
#include <vector>

#include "core/base/result.h"

namespace freshet::benchmarks {

struct PaperGain {
  std::string model;
  std::string assumed;  ///< Of the curve and the stall.
  double fixed = 0;     ///< Share of the epoch schedule's cumulative loss that is saved.
  double greedy = 0;
  double optimal = 0;
  double online = 0;
  double oracle = 0;  ///< No schedule can save more, if the curve was as assumed.
  std::size_t publishes_fixed = 0;
  std::size_t publishes_greedy = 0;
  std::size_t publishes_online = 0;
};

/// For each setting, what the paper reports, then a line for each assumption.
Result<std::vector<PaperGain>> paper_gains();

std::string paper_table(const std::vector<PaperGain>& gains);

}  // namespace freshet::benchmarks
