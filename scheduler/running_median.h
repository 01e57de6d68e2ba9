// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The (lower) median of the newest measurements: the usual time, without the effect of single slow calls. One thread
/// at a time.

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>

namespace freshet {

class RunningMedian {
 public:
  void add(double value) {
    values_[next_] = value;
    next_ = (next_ + 1) % kKept;
    count_ = std::min(count_ + 1, kKept);
    std::array<double, kKept> sorted = values_;
    const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>((count_ - 1) / 2);
    std::nth_element(sorted.begin(), middle, sorted.begin() + static_cast<std::ptrdiff_t>(count_));
    median_ = *middle;
  }

  /// None before the first measurement.
  std::optional<double> value() const { return count_ > 0 ? std::optional(median_) : std::nullopt; }

 private:
  static constexpr std::size_t kKept = 15;

  std::array<double, kKept> values_{};
  std::size_t next_ = 0;
  std::size_t count_ = 0;
  double median_ = 0;
};

}  // namespace freshet
