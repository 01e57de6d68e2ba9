// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Sums of doubles without rounding on the way. A cumulative loss is a sum over up to 2^53 requests; with this it is
/// the double nearest to the true sum of the costs, so that it has one right answer whatever the order.

#include <cstdint>
#include <vector>

namespace freshet {

/// One thread at a time. The value so far is held as doubles of growing magnitude that do not overlap (Shewchuk,
/// "Adaptive precision floating-point arithmetic", 1997); there are seldom more than three.
class ExactSum {
 public:
  void add(double value);
  /// Adds value · count. REQUIRES: 0 ≤ count ≤ 2^53. Exact unless the product is below 1e-290.
  void add_times(double value, std::int64_t count);

  /// The double nearest to the sum; not finite when a summand was not, or when the sum is out of range.
  double value() const;

 private:
  std::vector<double> parts_;
  double special_ = 0;  ///< Sum of what is not finite.
};

}  // namespace freshet
