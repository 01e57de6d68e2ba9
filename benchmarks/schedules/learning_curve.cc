// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/schedules/learning_curve.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

#include "core/base/format.h"

namespace freshet::benchmarks {
namespace {

constexpr double kAlike = 5;  ///< Scatters within which two rows' losses count as alike.
constexpr const char* kHeader = "step,loss,eval_loss";

struct Row {
  double step = 0;
  double loss = 0;
  double eval_loss = 0;
};

bool parse_row(const std::string& line, Row& row) {
  const char* at = line.data();
  const char* const end = line.data() + line.size();
  double* const fields[] = {&row.step, &row.loss, &row.eval_loss};
  for (double* field : fields) {
    if (field != fields[0] && (at == end || *at++ != ',')) return false;
    const auto [rest, error] = std::from_chars(at, end, *field);
    if (error != std::errc()) return false;
    at = rest;
  }
  return at == end;
}

double middle_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// The standard deviation of what is normal among them, by the median of the distances from their median. Infinite for
/// fewer than half of `reach` values, which say too little.
double usual_scatter(std::span<const double> values, std::size_t reach) {
  if (2 * values.size() < reach) return std::numeric_limits<double>::infinity();
  std::vector<double> distances(values.begin(), values.end());
  const double middle = middle_of(distances);
  for (double& distance : distances) distance = std::fabs(distance - middle);
  return 1.4826 * middle_of(std::move(distances));
}

}  // namespace

Result<LearningCurve> read_curve(const std::string& path) {
  std::ifstream file(path);
  if (!file) return fail(Code::not_found, format("curve {}: cannot be opened", path));
  LearningCurve curve{.name = std::filesystem::path(path).stem().string()};
  std::string line;
  if (!std::getline(file, line) || line != kHeader) {
    return fail(Code::invalid_argument, format("curve {}: line 1 is not {}", path, kHeader));
  }
  for (std::size_t number = 2; std::getline(file, line); ++number) {
    Row row;
    if (!parse_row(line, row) || row.step != static_cast<double>(number - 1) || !std::isfinite(row.eval_loss)) {
      return fail(Code::invalid_argument, format("curve {}: line {}: '{}'", path, number, line));
    }
    curve.loss.push_back(row.loss);
    curve.eval_loss.push_back(row.eval_loss);
  }
  return curve;
}

Result<std::vector<LearningCurve>> read_curves(const std::string& folder) {
  std::vector<std::string> paths;
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() == ".csv") paths.push_back(it->path().string());
  }
  if (paths.empty()) return fail(Code::not_found, format("no learning curves in {}", folder));
  std::sort(paths.begin(), paths.end());
  std::vector<LearningCurve> curves;
  for (const std::string& path : paths) {
    FRESHET_ASSIGN(LearningCurve curve, read_curve(path));
    curves.push_back(std::move(curve));
  }
  return curves;
}

std::vector<double> centred_mean(std::span<const double> values, std::size_t width) {
  const std::size_t reach = width / 2;
  std::vector<double> means;
  means.reserve(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::size_t first = i - std::min(i, reach);
    const std::size_t last = std::min(values.size() - 1, i + reach);
    double sum = 0;  // Anew for each: a running sum would carry a spike's rounding along.
    for (std::size_t j = first; j <= last; ++j) sum += values[j];
    means.push_back(sum / static_cast<double>(last - first + 1));
  }
  return means;
}

std::vector<double> trend_of(std::span<const double> values, std::size_t width) {
  const std::size_t reach = width / 2;
  std::vector<double> trend;
  trend.reserve(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::size_t first = i - std::min(i, reach);
    const std::size_t last = std::min(values.size() - 1, i + reach);
    const double like = kAlike * std::min(usual_scatter(values.subspan(first, i - first + 1), reach),
                                          usual_scatter(values.subspan(i, last - i + 1), reach));
    double sum = 0, count = 0;
    for (std::size_t j = first; j <= last; ++j) {
      if (std::fabs(values[j] - values[i]) > like) continue;
      sum += values[j];
      ++count;
    }
    trend.push_back(sum / count);
  }
  return trend;
}

}  // namespace freshet::benchmarks
