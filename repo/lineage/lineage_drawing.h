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
  VersionName best;  ///< The one to be ringed; empty: the first one that has the greatest quality among the rows.
};

/// Graphviz text, for `dot -Tsvg` and the like.
std::string lineage_dot(std::span<const LineageRow> rows, const LineageDrawing& drawing = {});

/// An SVG image that needs no Graphviz. Up to 150 versions each bear their name; more of them are dots. What else is
/// known of a version shows where the pointer rests on it.
std::string lineage_svg(std::span<const LineageRow> rows, const LineageDrawing& drawing = {});

/// Every version of every model, by name.
Result<std::vector<LineageRow>> all_versions(const Repository& repository);

}  // namespace freshet
