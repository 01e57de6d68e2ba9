// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The losses of a run that may never end, in bounded memory: the newest rows one by one, and the whole run in a number
/// of equal blocks. One thread at a time.

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

namespace freshet {

class LossRecord {
 public:
  static constexpr std::int64_t kRecentRows = 4096;
  static constexpr std::size_t kBlocksMax = 192;

  LossRecord();

  /// The next row's loss, counted from 1; NaN when it has none.
  void push(double loss);

  std::int64_t rows() const { return rows_; }

  /// The mean of `rows` neighbouring rows about `at`.
  struct Block {
    double at = 0;
    double loss = 0;
    double rows = 0;
  };
  /// The run so far, oldest first; blocks without a loss are left out. The last one may be shorter than the others.
  std::vector<Block> blocks() const;

  /// The trend at one row.
  struct Local {
    double level = 0;
    double slope = 0;
    /// Standard error of the slope when one row's noise is 1.
    double slope_error = 0;
  };
  struct Window {
    double reach = 1;
    std::int64_t first = 1;
    std::int64_t last = std::numeric_limits<std::int64_t>::max();
  };
  /// A straight line through the rows first…last within `reach` of `row` (nearer ones count more), as far as they have
  /// come. None when no loss is known there (any more).
  std::optional<Local> local(std::int64_t row, const Window& window) const;

 private:
  struct Sum {
    double loss = 0;
    std::int64_t rows = 0;
  };
  double recent(std::int64_t row) const { return recent_[static_cast<std::size_t>(row % kRecentRows)]; }
  void halve();

  std::vector<double> recent_;
  std::vector<Sum> sums_;
  std::int64_t block_rows_ = 1;
  std::int64_t rows_ = 0;
};

}  // namespace freshet
