// SPDX-License-Identifier: Apache-2.0
#include "predictor/optimal/layers.h"

#include <algorithm>
#include <utility>

#include "core/base/check.h"

namespace freshet::optimal {

LayeredSearch::LayeredSearch(const Candidates& candidates, std::vector<std::uint32_t> incumbent, std::int64_t work_max)
    : candidates_(candidates), incumbent_(std::move(incumbent)), work_max_(work_max) {}

void LayeredSearch::bound_savings(std::size_t layer) {
  const Delay delay = candidates_.delay(static_cast<std::int64_t>(layer));
  rest_min_.resize(candidates_.size());
  double sum = 0;
  for (std::size_t i = candidates_.size() - 1; i > 0; --i) {
    rest_min_[i] = sum;
    sum += candidates_.before(i, delay) * (candidates_.cost(i - 1) - candidates_.cost(i));
  }
  rest_min_[0] = sum;
}

void LayeredSearch::note(double total, std::size_t layer, std::uint32_t index, std::uint32_t parent) {
  if (going_back_ || total >= best_.total) return;
  best_ = {total, layer, index, parent};
  limit_ = total;
}

void LayeredSearch::advance(const Layer& from, std::size_t number, Layer& layer) {
  // Bounds of an earlier layer hold too: later publishes come later.
  constexpr std::size_t kLayersPerBound = 8;
  if (number % kLayersPerBound == 1) bound_savings(number);
  const Delay delay = candidates_.delay(static_cast<std::int64_t>(number));
  const double requests = candidates_.requests();
  const std::size_t size = candidates_.size();
  layer.clear();
  envelope_.clear();
  std::size_t added = 0;
  std::uint32_t i = from.front().index + 1;
  for (double before = i < size ? candidates_.before(i, delay) : requests; before < requests; ++i) {
    const double here = before;
    before = i + 1 < size ? candidates_.before(i + 1, delay) : requests;
    // Served at the same request as the next candidate, this one is of no use.
    if (here == before) continue;
    for (; added < from.size() && from[added].index < i; ++added) {
      const State& state = from[added];
      envelope_.add({.slope = candidates_.cost(state.index), .intercept = state.spent, .name = state.index});
    }
    ++work_;
    const LowerEnvelope::Line& parent = envelope_.lowest(here);
    const double cost = candidates_.cost(i);
    const double spent = parent.at(here) - here * cost;
    note(spent + requests * cost, number, i, parent.name);
    if (spent + rest_min_[i] < limit_) {
      layer.push_back({.spent = spent, .index = i, .parent = parent.name});
    } else if (added == from.size()) {
      break;  // From here on the bound only grows.
    }
  }
}

std::vector<std::uint32_t> LayeredSearch::run() {
  best_.total = candidates_.total(incumbent_);
  limit_ = best_.total;
  Layer layer{State{}};
  Layer following;
  for (std::size_t number = 1; !layer.empty(); ++number) {
    if ((number - 1) % kSpan == 0) kept_.push_back(layer);
    advance(layer, number, following);
    std::swap(layer, following);
    if (work_ > work_max_) {
      exact_ = layer.empty();
      break;
    }
  }
  return best_.layer == 0 ? incumbent_ : go_back();
}

std::vector<std::uint32_t> LayeredSearch::go_back() {
  // The same layers again, a span at a time, now with parents kept. A hair of slack keeps the best list's own states,
  // whatever rounding does to their bounds.
  constexpr double kSlack = 1e-9;
  going_back_ = true;
  limit_ = best_.total + kSlack * candidates_.requests() * candidates_.cost(0);
  std::vector<std::uint32_t> chosen{best_.index};
  std::uint32_t index = best_.parent;
  std::size_t last = best_.layer - 1;  // The layer in which `index` is.
  for (std::size_t span = last / kSpan + 1; span-- > 0;) {
    const std::size_t first = span * kSpan;
    std::vector<Layer> layers{std::move(kept_[span])};
    while (first + layers.size() <= last) {
      Layer layer;
      advance(layers.back(), first + layers.size(), layer);
      layers.push_back(std::move(layer));
    }
    for (; last > first; --last) {
      const Layer& layer = layers[last - first];
      const auto state = std::ranges::lower_bound(layer, index, {}, &State::index);
      FRESHET_CHECK(state != layer.end() && state->index == index);
      chosen.push_back(index);
      index = state->parent;
    }
  }
  std::reverse(chosen.begin(), chosen.end());
  return chosen;
}

}  // namespace freshet::optimal
