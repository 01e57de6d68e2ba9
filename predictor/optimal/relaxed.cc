// SPDX-License-Identifier: Apache-2.0
// The continuous reckoning: a publish at moment t (in requests) after which the cost falls by d saves d for every
// request after t, and each stall delays all that is still to come. With z the cost that is served in the end, a list
// costs
//   M z + sum over its entries of moment(entry) * (cost before - cost) + stall * (cost before - z),
// in which the number of an entry no longer occurs. So one pass over the rows finds the best list for a given z.

#include <cmath>

#include "predictor/optimal/candidates.h"
#include "predictor/optimal/lower_envelope.h"

namespace freshet::optimal {
namespace {

struct Step {
  double spent = 0;
  std::uint32_t parent = 0;
  std::uint32_t published = 0;
};

std::vector<std::uint32_t> path_to(const std::vector<Step>& steps, std::uint32_t end) {
  std::vector<std::uint32_t> path;
  for (std::uint32_t i = end; i != 0; i = steps[i].parent) path.push_back(i);
  std::reverse(path.begin(), path.end());
  return path;
}

/// The best list when stalls are priced as if `final_cost` were served in the end.
std::vector<std::uint32_t> best_for(const Candidates& candidates, double final_cost) {
  const double stall = candidates.stall();
  std::vector<Step> steps(candidates.size());
  LowerEnvelope envelope;
  envelope.add({.slope = candidates.cost(0), .intercept = stall * (candidates.cost(0) - final_cost)});
  std::uint32_t end = 0;
  double least = candidates.requests() * candidates.cost(0);
  for (std::uint32_t i = 1; i < candidates.size(); ++i) {
    const double moment = candidates.moment(i);
    const double cost = candidates.cost(i);
    const LowerEnvelope::Line& from = envelope.lowest(moment);
    Step& step = steps[i];
    step = {from.at(moment) - moment * cost, from.name, steps[from.name].published + 1};
    envelope.add({.slope = cost, .intercept = step.spent + stall * std::fmax(0, cost - final_cost), .name = i});
    const double delay = stall * step.published;
    if (moment + delay >= candidates.requests()) continue;
    const double total = step.spent + candidates.requests() * cost - delay * (cost - final_cost);
    if (total < least) {
      least = total;
      end = i;
    }
  }
  return path_to(steps, end);
}

}  // namespace

std::vector<std::uint32_t> relaxed_choice(const Candidates& candidates) {
  constexpr int kRoundsMax = 4;
  std::vector<std::uint32_t> best;
  double least = candidates.total(best);
  double final_cost = 0;
  for (int round = 0; round < kRoundsMax; ++round) {
    const std::vector<std::uint32_t> chosen = best_for(candidates, final_cost);
    const double total = candidates.total(chosen);
    if (total < least) {
      least = total;
      best = chosen;
    }
    const double end_cost = chosen.empty() ? candidates.cost(0) : candidates.cost(chosen.back());
    if (end_cost == final_cost) break;
    final_cost = end_cost;
  }
  return best;
}

}  // namespace freshet::optimal
