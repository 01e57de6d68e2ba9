// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The smallest of a growing set of lines, at growing places: amortised constant time for each line and each question,
/// because slopes fall from line to line (a monotone queue). Inner part of optimal.h.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace freshet::optimal {

/// One thread at a time.
class LowerEnvelope {
 public:
  struct Line {
    double slope = 0;
    double intercept = 0;
    std::uint32_t name = 0;

    double at(double x) const { return intercept + slope * x; }
  };

  void clear() {
    lines_.clear();
    first_ = 0;
  }

  /// REQUIRES: a slope below that of the line before.
  void add(const Line& line) {
    while (lines_.size() - first_ >= 2 && hides(lines_[lines_.size() - 2], lines_.back(), line)) lines_.pop_back();
    lines_.push_back(line);
  }

  /// The lowest line at x, among equals the newest. REQUIRES: there is one, and x does not shrink between calls.
  const Line& lowest(double x) {
    while (first_ + 1 < lines_.size() && lines_[first_ + 1].at(x) <= lines_[first_].at(x)) ++first_;
    return lines_[first_];
  }

 private:
  /// Whether `middle` is nowhere below both others: `right` crosses `left` no later than `middle` does.
  static bool hides(const Line& left, const Line& middle, const Line& right) {
    return (right.intercept - left.intercept) * (left.slope - middle.slope) <=
           (middle.intercept - left.intercept) * (left.slope - right.slope);
  }

  std::vector<Line> lines_;
  std::size_t first_ = 0;
};

}  // namespace freshet::optimal
