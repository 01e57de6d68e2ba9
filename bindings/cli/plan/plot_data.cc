// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/plan/plot_data.h"

#include <algorithm>
#include <cmath>

namespace freshet::cli {
namespace {

/// Of rows first…last (from 1), as far as there are any; NaN when there is nothing finite among them.
double mean_of(const std::vector<double>& values, std::int64_t first, std::int64_t last) {
  double sum = 0;
  double count = 0;
  for (std::int64_t row = first; row <= std::min(last, static_cast<std::int64_t>(values.size())); ++row) {
    const double value = values[static_cast<std::size_t>(row - 1)];
    if (!std::isfinite(value)) continue;
    sum += value;
    ++count;
  }
  return count == 0 ? NAN : sum / count;
}

PlotColumn column_of(const Report& report, std::int64_t first, std::int64_t last) {
  const std::int64_t warmup = report.clock.horizon().warmup;
  const std::int64_t middle = (first + last) / 2;
  const Band band = report.plan.forecast.band(static_cast<double>(middle));
  const PublishRows& publishes = report.plan.optimal;
  PlotColumn column{.first_row = first,
                    .last_row = last,
                    .middle_row = middle,
                    .forecast = band.middle,
                    .curve = report.plan.forecast.chosen()(static_cast<double>(middle)),
                    .band_lower = band.lower,
                    .band_upper = band.upper};
  column.seen = mean_of(report.table.losses, first, std::min(last, warmup));
  column.cost = report.replay ? mean_of(report.table.costs, std::max(first, warmup + 1), last) : NAN;
  column.publishes = static_cast<std::size_t>(std::upper_bound(publishes.begin(), publishes.end(), last) -
                                              std::lower_bound(publishes.begin(), publishes.end(), first));
  return column;
}

/// The range of what was seen and of the forecast after the warm-up: its beginning may be as high as the formula likes,
/// and the band as wide as ignorance.
void set_range(PlotData& data, std::int64_t warmup) {
  std::vector<double> values;
  for (const PlotColumn& column : data.columns) {
    values.push_back(column.seen);
    values.push_back(column.cost);
    if (column.last_row < warmup) continue;
    values.push_back(column.forecast);
  }
  std::erase_if(values, [](double value) { return !std::isfinite(value); });
  if (values.empty()) return;
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  const double margin = *high > *low ? (*high - *low) * 0.1 : std::max(1e-9, std::fabs(*low) * 0.03);
  data.low = *low - margin;
  data.high = *high + margin;
}

}  // namespace

PlotData plot_data(const Report& report, std::size_t columns_max) {
  const std::int64_t rows = report.clock.horizon().rows;
  const std::int64_t columns = std::min(rows, static_cast<std::int64_t>(columns_max));
  PlotData data;
  for (std::int64_t i = 0; i < columns; ++i) {
    data.columns.push_back(column_of(report, i * rows / columns + 1, (i + 1) * rows / columns));
  }
  set_range(data, report.clock.horizon().warmup);
  return data;
}

}  // namespace freshet::cli
