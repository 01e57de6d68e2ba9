// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What both pictures show: the run cut into columns of equally many rows.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "bindings/cli/plan/report.h"

namespace freshet::cli {

struct PlotColumn {
  std::int64_t first_row = 1;
  std::int64_t last_row = 1;
  double seen = 0;              ///< Mean of the losses that the fit saw, NaN where there were none.
  double cost = 0;              ///< In a replay: mean of what came after; else NaN.
  std::int64_t middle_row = 1;  ///< Of which the following are.
  double forecast = 0;          ///< What is planned with.
  double curve = 0;             ///< The formula that is printed.
  double band_lower = 0;        ///< The trend lies between these with 90 %.
  double band_upper = 0;
  std::size_t publishes = 0;  ///< Of the schedule `optimal`.
};

struct PlotData {
  std::vector<PlotColumn> columns;
  double low = 0;  ///< Everything that matters lies between these; low < high.
  double high = 1;
};

/// At most `columns_max` columns, from row 1 to the last.
PlotData plot_data(const Report& report, std::size_t columns_max);

}  // namespace freshet::cli
