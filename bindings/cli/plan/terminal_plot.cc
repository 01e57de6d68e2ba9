// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>

#include "bindings/cli/plan/plot.h"
#include "bindings/cli/plan/plot_data.h"
#include "core/base/format.h"

namespace freshet::cli {
namespace {

constexpr std::size_t kTerminalColumns = 72;
constexpr std::size_t kLines = 14;

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
