// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The best first publish, when the future loss is taken as foretold: dynamic programming over a few dozen coming rows,
/// dense at first and sparser with distance.
///
/// Let requests(t) be the number of requests from time t on. Publishing after rows i1 < i2 < … costs, against never
/// publishing again, the sum over k of requests(served_k) (v(i_k) - v(i_k-1)), where served_k = rows to i_k, k stalls
/// and the delivery. Exact planning needs a table for each number of stalls before. Here the best plan that ends with
/// row i is kept alone, and plans with different numbers of stalls are compared by charging each stall what it costs
/// those that come later: stall / interval requests see everything that is still to be gained later by that much. What
/// is ahead of the next publish decides little about it, so this costs next to nothing (about 0.01 % of the cumulative
/// loss against exact plans, when both know the future) and makes a decision a matter of microseconds.

#include <functional>

namespace freshet {

/// From the end of the present row on; times in one unit, whichever.
struct Situation {
  double step = 1;
  double stall = 0;
  double delivery = 0;
  double interval = 1;       ///< Between requests.
  double rows_left = 0;      ///< Versions that can still come, the present one not counted.
  double requests_left = 0;  ///< Those after now.

  /// Requests answered by what is served `time` from now on.
  double requests_from(double time) const;
  /// Rows that can still be served to somebody when published, stalls until then not counted; at most rows_left.
  double useful_rows() const;
};

struct LookaheadOptions {
  double served = 0;          ///< Loss of the version that is served.
  double first_distance = 1;  ///< Rows between the first candidates.
  double least_fall = 0;      ///< How much fall to expect of the rest at least, whatever the outlook says.
};

struct Lookahead {
  bool publish = false;   ///< A next publish is worth its stall at all.
  double distance = 0;    ///< Its distance in rows from the present one; 0: now.
  double gain = 0;        ///< Saved by a publish of the present version over never publishing again: loss x requests.
  double stall_cost = 0;  ///< The stall's cost for later versions, in the same unit.
};

/// `loss` maps a distance in rows (0: the present one) to the loss foretold for that version.
Lookahead look_ahead(const Situation& situation, const LookaheadOptions& options,
                     const std::function<double(double)>& loss);

}  // namespace freshet
