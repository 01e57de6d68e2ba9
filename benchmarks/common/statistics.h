// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Numbers from repeated measurements.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace freshet::benchmarks {

/// Values of one quantity, in the order in which they were measured.
class Samples {
 public:
  Samples() = default;
  Samples(double only) : values_{only} {}  // NOLINT(google-explicit-constructor)
  void add(double value) { values_.push_back(value); }
  void add(const Samples& other) { values_.insert(values_.end(), other.values_.begin(), other.values_.end()); }
  std::size_t count() const { return values_.size(); }
  const std::vector<double>& values() const { return values_; }

  double min() const { return percentile(0.0); }
  double median() const { return percentile(0.5); }
  double max() const { return percentile(1.0); }
  double sum() const {
    double sum = 0;
    for (const double value : values_) sum += value;
    return sum;
  }

  /// The smallest value that a share of `fraction` of all values does not exceed; NaN when there are none.
  double percentile(double fraction) const {
    if (values_.empty()) return std::nan("");
    std::vector<double> sorted = values_;
    std::sort(sorted.begin(), sorted.end());
    const double rank = std::ceil(fraction * static_cast<double>(sorted.size()));
    const auto index = static_cast<std::size_t>(std::max(1.0, rank)) - 1;
    return sorted[std::min(index, sorted.size() - 1)];
  }

 private:
  std::vector<double> values_;
};

}  // namespace freshet::benchmarks
