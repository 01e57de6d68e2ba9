// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/plan/terminal_plot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "core/base/format.h"

namespace freshet::cli {
namespace {

constexpr std::size_t kTerminalColumns = 72;
constexpr std::size_t kLines = 14;

/// A column of the picture: as many rows as any other one.
struct PlotColumn {
  std::int64_t last_row = 1;
  double seen = 0;        ///< Mean of the losses that the fit saw, NaN where there were none.
  double cost = 0;        ///< In a replay: mean of what came after; else NaN.
  double forecast = 0;    ///< What is planned with; this and the following are of the row in the middle.
  double curve = 0;       ///< The formula that is printed.
  double band_lower = 0;  ///< The trend lies between these with 90 %.
  double band_upper = 0;
  std::size_t publishes = 0;  ///< Of the schedule `optimal`.
};

struct PlotData {
  std::vector<PlotColumn> columns;
  double low = 0;  ///< Everything that matters lies between these; low < high.
  double high = 1;
};

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
  PlotColumn column{.last_row = last,
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

/// At most `columns_max` columns, from row 1 to the last.
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

/// A canvas of characters, the highest value on top.
class Canvas {
 public:
  Canvas(const PlotData& data) : data_(data) {
    for (std::string& line : lines_) line.assign(data.columns.size(), ' ');
  }

  void put(std::size_t column, double value, char mark) {
    if (!std::isfinite(value) || value < data_.low || value > data_.high) return;
    const double part = (data_.high - value) / (data_.high - data_.low);
    lines_[std::min(kLines - 1, static_cast<std::size_t>(part * kLines))][column] = mark;
  }

  std::string text() const {
    std::string text;
    for (std::size_t i = 0; i < kLines; ++i) {
      const bool is_labelled = i == 0 || i + 1 == kLines;
      const std::string label = is_labelled ? format("{:.4g}", i == 0 ? data_.high : data_.low) : std::string();
      const std::string& line = lines_[i];
      text += format("{:>10} |{}\n", label, line.substr(0, line.find_last_not_of(' ') + 1));
    }
    return text;
  }

 private:
  const PlotData& data_;
  std::array<std::string, kLines> lines_;
};

/// One mark for a few publishes in a column, others for many.
char density_mark(std::size_t publishes) {
  return publishes == 0 ? ' ' : publishes == 1 ? '|' : publishes < 10 ? '+' : '#';
}

}  // namespace

std::string terminal_plot(const Report& report) {
  const PlotData data = plot_data(report, kTerminalColumns);
  Canvas canvas(data);
  std::string publishes;
  for (std::size_t i = 0; i < data.columns.size(); ++i) {
    const PlotColumn& column = data.columns[i];
    canvas.put(i, column.band_lower, '.');
    canvas.put(i, column.band_upper, '.');
    canvas.put(i, column.cost, 'x');
    canvas.put(i, column.curve, '-');
    canvas.put(i, column.forecast, '*');
    canvas.put(i, column.seen, 'o');
    publishes += density_mark(column.publishes);
  }
  const std::string last = format("step {}", report.table.step_of(report.clock.horizon().rows));
  const std::size_t room = data.columns.size() > last.size() ? data.columns.size() - last.size() : 0;
  return canvas.text() +
         format("{:>10} |{}\n{:>12}{:<{}}{}\n", "publish", publishes.substr(0, publishes.find_last_not_of(' ') + 1), "",
                format("step {}", report.table.step_of(1)), room, last) +
         format(
             "{:>12}o loss seen   * forecast   - {} alone   . 90 % band{}\n"
             "{:>12}publishes of `optimal`: | one  + several  # ten and more\n",
             "", report.plan.forecast.chosen().name(), report.replay ? "   x what came" : "", "");
}

}  // namespace freshet::cli
