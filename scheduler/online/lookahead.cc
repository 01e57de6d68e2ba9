// SPDX-License-Identifier: Apache-2.0
#include "scheduler/online/lookahead.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace freshet {
namespace {

constexpr int kCandidates = 40;

using Grid = std::array<double, kCandidates>;

/// The factor by which distances must grow for `count` of them, the first being `first`, to reach `reach`.
double growth(double first, double reach, int count) {
  if (reach <= first * count) return 1;
  double low = 1, high = 2;
  while (first * (std::pow(high, count) - 1) / (high - 1) < reach && high < 1e6) high *= 2;
  for (int i = 0; i < 40; ++i) {
    const double middle = (low + high) / 2;
    const double sum = first * (std::pow(middle, count) - 1) / (middle - 1);
    (sum < reach ? low : high) = middle;
  }
  return high;
}

/// Whole distances from 0 to `reach`, growing; returns how many.
int lay_out(double first, double reach, Grid& grid) {
  const double factor = growth(first, reach, kCandidates - 1);
  int count = 1;
  grid[0] = 0;
  double exact = 0, width = first;
  while (count < kCandidates && grid[count - 1] < reach) {
    exact += width;
    width *= factor;
    const double whole = std::min(reach, std::floor(exact + 0.5));
    if (whole > grid[count - 1]) grid[count++] = whole;
  }
  return count;
}

/// The best plan whose last publish is one candidate.
struct CandidatePlan {
  double cost = 0;
  int stalls = 0;
  int first = 0;  ///< Candidate that it publishes first.
};

}  // namespace

double Situation::requests_from(double time) const {
  return std::clamp(requests_left - time / interval, 0.0, requests_left);
}

double Situation::useful_rows() const {
  const double until_last_request = (requests_left * interval - stall - delivery) / step;
  return std::clamp(std::floor(until_last_request), 0.0, rows_left);
}

Lookahead look_ahead(const Situation& situation, const LookaheadOptions& options,
                     const std::function<double(double)>& loss) {
  Grid rows;
  const int count = lay_out(std::max(1.0, std::floor(options.first_distance)), situation.useful_rows(), rows);
  Grid losses;
  for (int i = 0; i < count; ++i) losses[i] = loss(rows[i]);
  const double end = *std::min_element(losses.begin(), losses.begin() + count);
  const double stalled_requests = situation.stall / situation.interval;
  const auto later_cost = [&](int i) { return stalled_requests * std::max(options.least_fall, losses[i] - end); };

  std::array<CandidatePlan, kCandidates> plans;
  const CandidatePlan* best = nullptr;
  for (int i = 0; i < count; ++i) {
    const double arrival = rows[i] * situation.step + situation.delivery;
    const double per_stall = later_cost(i);
    double best_charged = 0;
    const auto extend = [&](double cost, double from, int stalls, int first, bool only) {
      const double total =
          cost + situation.requests_from(arrival + (stalls + 1) * situation.stall) * (losses[i] - from);
      const double charged = total + (stalls + 1) * per_stall;
      if (!only && charged >= best_charged) return;
      best_charged = charged;
      plans[i] = {.cost = total, .stalls = stalls + 1, .first = first};
    };
    extend(0, options.served, 0, i, true);
    for (int j = 0; j < i; ++j) {
      if (losses[j] > losses[i]) extend(plans[j].cost, losses[j], plans[j].stalls, plans[j].first, false);
    }
    if (plans[i].cost < (best == nullptr ? 0 : best->cost)) best = &plans[i];
  }
  Lookahead answer{.gain = -plans[0].cost, .stall_cost = later_cost(0)};
  if (best == nullptr) return answer;
  answer.publish = true;
  answer.distance = rows[static_cast<std::size_t>(best->first)];
  return answer;
}

}  // namespace freshet
