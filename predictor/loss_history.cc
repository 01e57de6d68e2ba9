// SPDX-License-Identifier: Apache-2.0
#include "predictor/loss_history.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "core/base/format.h"
#include "predictor/fit/points.h"

namespace freshet {
namespace {

constexpr double kLastIteration = 9007199254740992.0;  // Beyond it, doubles no longer count one by one.

}  // namespace

Status LossHistory::add(double iteration, double loss) {
  if (!(iteration >= 1 && iteration <= kLastIteration)) {
    return fail(Code::invalid_argument, format("iteration {}: must be a number from 1 to 2^53", iteration));
  }
  if (iteration <= last_iteration_) {
    return fail(Code::invalid_argument, format("iteration {} after {}: must grow", iteration, last_iteration_));
  }
  last_iteration_ = iteration;
  if (!(std::abs(loss) <= kLargestLoss)) {
    ++skipped_;
    return {};
  }
  if (points_.size() == 2 * kBins) merge();
  points_.push_back({.x = iteration, .y = loss, .weight = 1});
  ++rows_;
  return {};
}

// A row is judged by its neighbours on both sides, so the newest few have to wait, and the last settled ones are looked
// at again as neighbours.
void LossHistory::merge() {
  const std::size_t first = settled_ - std::min(settled_, kSpikeReach);
  const std::size_t ready = points_.size() - kSpikeReach;
  spikes_ += draw_spikes(std::span(points_).subspan(first), settled_ - first, ready - first);
  const std::vector<CurvePoint> newest(points_.end() - kSpikeReach, points_.end());
  points_ = merged(std::span(points_).first(ready), kBins);
  settled_ = points_.size();
  points_.insert(points_.end(), newest.begin(), newest.end());
}

}  // namespace freshet
