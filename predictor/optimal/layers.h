// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The exact search, a layer for each number of publishes. Inner part of optimal.h; CUMULATIVE_LOSS.md, "The
/// recursion".

#include <cstdint>
#include <vector>

#include "predictor/optimal/candidates.h"
#include "predictor/optimal/lower_envelope.h"

namespace freshet::optimal {

/// One thread at a time. Runs once.
class LayeredSearch {
 public:
  /// `incumbent` is a list to beat; the better it is the less work there is.
  LayeredSearch(const Candidates& candidates, std::vector<std::uint32_t> incumbent, std::int64_t work_max);

  std::vector<std::uint32_t> run();
  /// False when run() was cut off.
  bool exact() const { return exact_; }
  std::int64_t work() const { return work_; }

 private:
  /// A candidate as the layer's newest publish.
  struct State {
    double spent = 0;  ///< The sum of requests before each publish times the fall of cost at it.
    std::uint32_t index = 0;
    std::uint32_t parent = 0;
  };
  using Layer = std::vector<State>;

  /// The list that ends with `index` in layer `layer`. Layer 0 has the held version alone: there is none.
  struct Best {
    double total = 0;
    std::size_t layer = 0;
    std::uint32_t index = 0;
    std::uint32_t parent = 0;
  };

  /// How many layers lie between two that are kept for going back.
  static constexpr std::size_t kSpan = 256;

  /// Fills `layer`, the one of this number, from the one before.
  void advance(const Layer& from, std::size_t number, Layer& layer);
  void note(double total, std::size_t layer, std::uint32_t index, std::uint32_t parent);
  void bound_savings(std::size_t layer);
  std::vector<std::uint32_t> go_back();

  const Candidates& candidates_;
  const std::vector<std::uint32_t> incumbent_;
  const std::int64_t work_max_;
  Best best_;
  double limit_ = 0;  ///< States that cannot stay below it are dropped.
  bool going_back_ = false;
  bool exact_ = true;
  std::int64_t work_ = 0;
  std::vector<double> rest_min_;  ///< The least that is still to be spent after each candidate.
  LowerEnvelope envelope_;
  std::vector<Layer> kept_;
};

}  // namespace freshet::optimal
