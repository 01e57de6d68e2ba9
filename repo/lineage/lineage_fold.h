// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Makes a long lineage short enough for a page. Private to this room.

#include <cstddef>
#include <limits>
#include <span>
#include <vector>

#include "repo/lineage/lineage_layout.h"
#include "repo/repository.h"

namespace freshet {

/// A mark of a drawing: a version, or several versions that are folded into one mark.
struct LineageMark {
  static constexpr std::size_t kNoRow = std::numeric_limits<std::size_t>::max();

  /// The row of a version. Folded: the name of the last version, the ancestor of the first one.
  LineageRow row;
  std::vector<std::size_t> folded;  ///< The rows that are folded, ancestors first; empty for one version.
};

LineageLayout layout_of(std::span<const LineageMark> marks);

struct FoldLimits {
  std::size_t chain = 12;    ///< Columns, from which on chains are folded.
  std::size_t columns = 40;  ///< Above these, small branches are folded too.
  std::size_t lines = 120;
};

/// The marks that stand for the rows. A drawing of them keeps to the limits for columns and lines; within the limits
/// each version has its own mark. Folded are, first, chains: versions with one child each. Then small branches, of one
/// version, of up to two, four, and so on, until all fits: into the chain that they leave, or else all small branches
/// of a version into one mark. `kept` is a row that always has its own mark; kNoRow: none.
std::vector<LineageMark> folded(std::span<const LineageRow> rows, std::size_t kept, const FoldLimits& limits = {});

}  // namespace freshet
