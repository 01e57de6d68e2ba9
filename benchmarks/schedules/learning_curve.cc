// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/schedules/learning_curve.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "core/base/format.h"

namespace freshet::benchmarks {
namespace {

constexpr double kFarApart = 5;  ///< Usual scatters between the levels before and after a jump.
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

double mean_of(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

/// The standard deviation of what is normal among them, by the median of the distances from their median.
double usual_scatter(std::span<const double> values) {
  std::vector<double> distances(values.begin(), values.end());
  const double middle = middle_of(distances);
  for (double& distance : distances) distance = std::fabs(distance - middle);
  return 1.4826 * middle_of(std::move(distances));
}

/// The rows with which the loss jumps up: where the median of the `reach` values from there on is far above that of as
/// many before. Of neighbours, the row where the means are farthest apart. At least `reach` rows lie between two.
std::vector<std::size_t> jumps_of(std::span<const double> values, std::size_t reach) {
  std::vector<std::size_t> jumps;
  std::size_t last_far = 0;  // Of the jump at the end of the list; its row when `farthest` was found.
  double farthest = 0;
  for (std::size_t row = reach; row + reach <= values.size(); ++row) {
    const auto before = values.subspan(row - reach, reach), after = values.subspan(row, reach);
    const double scatter = std::min(usual_scatter(before), usual_scatter(after));
    const double apart = middle_of({after.begin(), after.end()}) - middle_of({before.begin(), before.end()});
    if (apart <= kFarApart * scatter) continue;
    const double means_apart = mean_of(after) - mean_of(before);
    const bool is_another = jumps.empty() || row > last_far + 1;
    if (is_another && !jumps.empty() && row < jumps.back() + reach) continue;
    if (is_another) jumps.push_back(row);
    if (is_another || means_apart > farthest) {
      jumps.back() = row;
      farthest = means_apart;
    }
    last_far = row;
  }
  return jumps;
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
  std::vector<std::size_t> ends = jumps_of(values, reach);
  ends.push_back(values.size());
  std::vector<double> trend;
  trend.reserve(values.size());
  for (const std::size_t end : ends) {
    const std::vector<double> means = centred_mean(values.subspan(trend.size(), end - trend.size()), width);
    trend.insert(trend.end(), means.begin(), means.end());
  }
  return trend;
}

}  // namespace freshet::benchmarks
