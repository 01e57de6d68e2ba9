// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Draws lineages, a whole search's for instance:
///
///     FRESHET_ASSIGN(const std::vector<LineageRow> rows, all_versions(repository));
///     std::ofstream("search.svg") << lineage_svg(rows, {.title = "search"});
///
/// Ancestors stand to the left of their children, the colour tells the quality (dark is the worst among the rows,
/// bright the best, grey is none), the best one is ringed, and retired ones are dashed. A row whose ancestor is not
/// among the rows begins a tree; an ancestor that exists but is not shown is hinted at by a dotted stub. Pure functions
/// of their arguments; rows come from anywhere, in any order (circles are cut, names escaped).

#include <span>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "repo/repository.h"

namespace freshet {

struct LineageDrawing {
  std::string title;
  VersionName best;  ///< The one to be ringed; empty: the first one that has the best quality among the rows.
  std::string measure = "quality";  ///< What the rows' qualities are, for the legend.
  bool lower_is_better = false;
};

/// Graphviz text, for `dot -Tsvg` and the like: each version.
std::string lineage_dot(std::span<const LineageRow> rows, const LineageDrawing& drawing = {});

/// An SVG image that needs no Graphviz, for a page of 1120 by 790 pixels (A4, landscape) at most. Of a lineage that is
/// longer than 12 versions, chains are folded: one mark stands for several versions, and shows their colours. Small
/// branches are folded too, if the page has no room for them. Marks bear names if there is room; the best one always
/// does. What else is known of a version shows where the pointer rests on it. The attribute data-v of a mark's group
/// is the name of its version (of a folded chain's last one, of folded branches' first one).
std::string lineage_svg(std::span<const LineageRow> rows, const LineageDrawing& drawing = {});

/// Every version of every model, by name.
Result<std::vector<LineageRow>> all_versions(const VersionCatalog& repository);

}  // namespace freshet
