// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A run's losses in bounded memory, as long as the run lasts. Rows are kept as they come until there are too many.
/// Then neighbours are merged into bins (mean, weight = number of rows), finely where the run is young and curves are
/// steep, coarsely later: bins are about even in the cube root of the iteration. Before rows are merged, single ones
/// that stand far off their neighbours' median are drawn to it and counted as spikes, so that one of them cannot bend a
/// bin.
///
/// The state after row i depends only on rows 1 to i, not on the number of later rows.
///
/// A row costs a few nanoseconds, and one in kBins about 50 µs, when bins are merged. Thread rule: a value, one thread
/// at a time.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/result.h"
#include "predictor/curves/curve.h"

namespace freshet {

class LossHistory {
 public:
  static constexpr std::size_t kBins = 256;
  static constexpr double kLargestLoss = 1e100;

  /// A loss that is not finite, or of a size above kLargestLoss, is skipped and counted. invalid_argument, and nothing
  /// is taken, when the iteration is not within 1 to 2^53 or not above the last one's (skipped rows' iterations count
  /// too).
  Status add(double iteration, double loss);

  /// The rows and bins, x growing; at most 2 kBins.
  const std::vector<CurvePoint>& points() const { return points_; }

  /// Rows taken, skipped ones not counted.
  std::uint64_t rows() const { return rows_; }
  std::uint64_t skipped() const { return skipped_; }
  /// Rows that were drawn to their neighbours when they were merged.
  std::uint64_t spikes() const { return spikes_; }
  /// 0 before the first row.
  double last_iteration() const { return last_iteration_; }

 private:
  void merge();

  std::vector<CurvePoint> points_;
  std::size_t settled_ = 0;  // Points before it were searched for spikes already.
  std::uint64_t rows_ = 0;
  std::uint64_t skipped_ = 0;
  std::uint64_t spikes_ = 0;
  double last_iteration_ = 0;
};

}  // namespace freshet
