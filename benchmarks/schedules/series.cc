// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/schedules/series.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "core/base/format.h"

namespace freshet::benchmarks {
namespace {

constexpr std::size_t kPoints = 100;
constexpr const char* kLanes[] = {kEpoch, kFixed, kOptimal, kOnline, kOracle};

std::string curve_text(const Case& of) {
  const std::size_t stride = std::max<std::size_t>(of.loss.size() / kPoints, 1);
  const std::vector<double> loss = centred_mean(of.loss, stride / 2 * 2 + 1);
  std::string text;
  for (std::size_t row = 0; row < loss.size(); row += stride) {
    text += format("{}\t{:.5g}\t{:.5g}\n", row + 1, loss[row], of.trend[row]);
  }
  return text;
}

std::string publishes_text(const Played& played) {
  std::string text;
  int lane = 0;
  for (const char* name : kLanes) {
    ++lane;
    for (const std::int64_t row : played.outcomes.at(name).rows) text += format("{}\t{}\n", lane, row);
  }
  return text;
}

std::string ratios_text(const std::vector<Played>& played) {
  std::vector<std::vector<double>> columns;
  for (const char* contender : kContenders) {
    std::vector<double>& column = columns.emplace_back();
    for (const Played& one : played) column.push_back(one.to_oracle(contender) - 1);
    std::sort(column.begin(), column.end());
  }
  std::string text;
  for (std::size_t i = 0; i < played.size(); ++i) {
    text += format("{:.4f}", static_cast<double>(i + 1) / static_cast<double>(played.size()));
    for (const auto& column : columns) text += format("\t{:.4g}", std::max(column[i], 1e-5));
    text += "\n";
  }
  return text;
}

Status write_file(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.close();
  if (!file) return fail(Code::io_error, format("{}: cannot be written", path.string()));
  return {};
}

}  // namespace

Status write_series(const std::string& folder, const std::vector<Played>& played) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  const std::filesystem::path into(folder);
  for (const Played& one : played) {
    const std::string& name = one.of->name;  // "curve price"
    const std::size_t blank = name.find(' ');
    FRESHET_TRY(write_file(into / (name.substr(0, blank) + ".curve"), curve_text(*one.of)));
    std::string file = name + ".publishes";
    file[blank] = '_';
    FRESHET_TRY(write_file(into / file, publishes_text(one)));
  }
  return write_file(into / "ratios.tsv", ratios_text(played));
}

}  // namespace freshet::benchmarks
