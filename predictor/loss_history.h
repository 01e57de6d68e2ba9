// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The losses of a run of any length, in bounded memory. Rows are kept unchanged until there are too many. Then
/// neighbours are merged into bins (mean, weight = number of rows). Bins are fine at the run's begin, where curves are
/// steep, and coarse later: measured in the cube root of the iteration, all bins are about equally wide. Before rows
/// are merged, a single row far from its neighbours' median is moved to this median, and counted as a spike. So one row
/// cannot bend a bin.
///
/// The state after row i depends only on rows 1 to i, not on the number of later rows.
///
/// A row costs a few nanoseconds. Every kBins rows, bins are merged, which takes about 50 µs. Thread rule: a value, one
/// thread at a time.

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

  /// Skips and counts a loss that is not finite, or whose absolute value is above kLargestLoss. invalid_argument: the
  /// iteration is not within 1 to 2^53, or not above the last one (of all rows, the skipped ones too). The row is then
  /// not taken.
  Status add(double iteration, double loss);

  /// The rows and bins, x growing; at most 2 kBins.
  const std::vector<CurvePoint>& points() const { return points_; }

  /// The number of rows, without skipped ones.
  std::uint64_t rows() const { return rows_; }
  std::uint64_t skipped() const { return skipped_; }
  /// The number of spikes: rows that were moved to their neighbours' median.
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
