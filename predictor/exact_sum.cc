// SPDX-License-Identifier: Apache-2.0
#include "predictor/exact_sum.h"

#include <cmath>
#include <utility>

namespace freshet {

void ExactSum::add(double value) {
  if (!std::isfinite(value)) {
    special_ += value;
    return;
  }
  std::size_t kept = 0;
  for (double part : parts_) {
    if (std::fabs(value) < std::fabs(part)) std::swap(value, part);
    const double high = value + part;
    const double low = part - (high - value);
    if (low != 0) parts_[kept++] = low;
    value = high;
  }
  parts_.resize(kept);
  if (std::isfinite(value)) {
    parts_.push_back(value);
  } else {
    special_ += value;
  }
}

void ExactSum::add_times(double value, std::int64_t count) {
  if (count == 0) return;
  const auto times = static_cast<double>(count);
  const double product = value * times;
  add(product);
  if (std::isfinite(product)) add(std::fma(value, times, -product));
}

double ExactSum::value() const {
  if (special_ != 0) return special_;
  if (parts_.empty()) return 0;
  std::size_t i = parts_.size() - 1;
  double high = parts_[i];
  double low = 0;
  while (i > 0 && low == 0) {
    const double before = high;
    const double part = parts_[--i];
    high = before + part;
    low = part - (high - before);
  }
  // Exactly between two doubles, what is left below says which one is nearer.
  if (i > 0 && low != 0 && (low < 0) == (parts_[i - 1] < 0)) {
    const double twice = low * 2;
    const double rounded = high + twice;
    if (twice == rounded - high) high = rounded;
  }
  return high;
}

}  // namespace freshet
