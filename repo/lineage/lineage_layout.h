// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Where each version of a lineage stands in a drawing, and which colour it has. Private to this room.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "repo/repository.h"

namespace freshet {

/// Trees from left to right: a column for each generation, a line for each leaf, and a parent in the middle of its
/// children. By index of the rows that were given.
struct LineageLayout {
  static constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();

  std::vector<std::size_t> parent;  ///< kNone where a tree begins. Free of circles.
  std::vector<std::uint32_t> column;
  std::vector<double> line;
  std::uint32_t columns = 0;
  std::size_t lines = 0;
};
LineageLayout layout_of(std::span<const LineageRow> rows);

/// Worst and best quality among the rows; nothing when none has one.
struct QualityRange {
  double worst = 0;
  double best = 0;
  std::size_t best_row = 0;  ///< The first row that has the best.

  /// How far the quality is on the way from the worst (0) to the best (1).
  double share(double quality) const;
};
std::optional<QualityRange> quality_range(std::span<const LineageRow> rows, bool lower_is_better = false);

/// "#rrggbb", from dark (the worst) to bright (the best); grey for none.
std::string quality_colour(const std::optional<double>& quality, const std::optional<QualityRange>& range);
/// `share` of the way from the worst to the best.
std::string colour_at(double share);

}  // namespace freshet
