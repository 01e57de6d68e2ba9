// SPDX-License-Identifier: Apache-2.0
#include "scheduler/online/loss_record.h"

#include <algorithm>
#include <cmath>

namespace freshet {

LossRecord::LossRecord() : recent_(kRecentRows) { sums_.reserve(kBlocksMax); }

void LossRecord::push(double loss) {
  if (rows_ == block_rows_ * static_cast<std::int64_t>(kBlocksMax)) halve();
  if (rows_ % block_rows_ == 0) sums_.emplace_back();
  if (std::isfinite(loss)) {
    sums_.back().loss += loss;
    ++sums_.back().rows;
  }
  ++rows_;
  recent_[static_cast<std::size_t>(rows_ % kRecentRows)] = loss;
}

void LossRecord::halve() {
  for (std::size_t i = 0; i < sums_.size() / 2; ++i) {
    const Sum& a = sums_[2 * i];
    const Sum& b = sums_[2 * i + 1];
    sums_[i] = {.loss = a.loss + b.loss, .rows = a.rows + b.rows};
  }
  sums_.resize(sums_.size() / 2);
  block_rows_ *= 2;
}

std::vector<LossRecord::Block> LossRecord::blocks() const {
  std::vector<Block> blocks;
  blocks.reserve(sums_.size());
  for (std::size_t i = 0; i < sums_.size(); ++i) {
    if (sums_[i].rows == 0) continue;
    const std::int64_t first = static_cast<std::int64_t>(i) * block_rows_ + 1;
    const std::int64_t last = std::min(first + block_rows_ - 1, rows_);
    const double rows = static_cast<double>(sums_[i].rows);
    blocks.push_back({.at = static_cast<double>(first + last) / 2, .loss = sums_[i].loss / rows, .rows = rows});
  }
  return blocks;
}

std::optional<LossRecord::Local> LossRecord::local(std::int64_t row, const Window& window) const {
  const double reach = window.reach;
  const auto radius = static_cast<std::int64_t>(std::min(reach, static_cast<double>(kRecentRows)));
  const std::int64_t first = std::max({row - radius, std::int64_t{1}, window.first, rows_ - kRecentRows + 1});
  const std::int64_t last = std::min({row + radius, rows_, window.last});
  double n = 0, x = 0, xx = 0, y = 0, xy = 0;
  for (std::int64_t r = first; r <= last; ++r) {
    const double loss = recent(r);
    const double at = static_cast<double>(r - row);
    const double weight = 1 - std::fabs(at) / reach;
    if (weight <= 0 || std::isnan(loss)) continue;
    n += weight;
    x += weight * at;
    xx += weight * at * at;
    y += weight * loss;
    xy += weight * at * loss;
  }
  if (n <= 0) return std::nullopt;
  const double determinant = n * xx - x * x;
  if (!(determinant > 1e-9 * n * xx)) return Local{.level = y / n, .slope = 0, .slope_error = 1e9};
  const double slope = (n * xy - x * y) / determinant;
  return Local{.level = (y - slope * x) / n, .slope = slope, .slope_error = std::sqrt(n / determinant)};
}

}  // namespace freshet
