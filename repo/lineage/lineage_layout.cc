// SPDX-License-Identifier: Apache-2.0
#include "repo/lineage/lineage_layout.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "core/base/format.h"

namespace freshet {
namespace {

constexpr std::size_t kNoRow = LineageLayout::kNone;

/// Who is whose child, in the order of the rows.
struct Kinship {
  std::vector<std::size_t> parent;
  std::vector<std::vector<std::size_t>> children;
};

Kinship family_of(std::span<const LineageRow> rows) {
  std::map<VersionName, std::size_t> by_name;
  for (std::size_t i = 0; i < rows.size(); ++i) by_name.emplace(rows[i].version, i);
  Kinship family{.parent = std::vector<std::size_t>(rows.size(), kNoRow),
                 .children = std::vector<std::vector<std::size_t>>(rows.size())};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto ancestor = by_name.find(rows[i].ancestor);
    if (ancestor != by_name.end()) family.parent[i] = ancestor->second;
  }
  // Whoever is met again on the way up from itself begins a tree. Each row is walked over once.
  std::vector<std::size_t> walked_by(rows.size(), kNoRow);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (std::size_t at = i; at != kNoRow && walked_by[at] == kNoRow; at = family.parent[at]) {
      walked_by[at] = i;
      const std::size_t above = family.parent[at];
      if (above != kNoRow && walked_by[above] == i) family.parent[at] = kNoRow;
    }
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (family.parent[i] != kNoRow) family.children[family.parent[i]].push_back(i);
  }
  return family;
}

}  // namespace

LineageLayout layout_of(std::span<const LineageRow> rows) {
  const Kinship family = family_of(rows);
  LineageLayout layout{.parent = family.parent,
                       .column = std::vector<std::uint32_t>(rows.size(), 0),
                       .line = std::vector<double>(rows.size(), 0)};
  // Depth first, without recursion: a lineage may be 10,000 deep. A row comes off the stack twice, the second time when
  // all its children have their lines.
  struct Visit {
    std::size_t row;
    bool again;
  };
  std::vector<Visit> stack;
  for (std::size_t root = rows.size(); root-- > 0;) {
    if (family.parent[root] == kNoRow) stack.push_back({.row = root, .again = false});
  }
  while (!stack.empty()) {
    const auto [row, again] = stack.back();
    stack.pop_back();
    const auto& children = family.children[row];
    if (again) {
      layout.line[row] = (layout.line[children.front()] + layout.line[children.back()]) / 2;
      continue;
    }
    if (family.parent[row] != kNoRow) layout.column[row] = layout.column[family.parent[row]] + 1;
    layout.columns = std::max(layout.columns, layout.column[row] + 1);
    if (children.empty()) {
      layout.line[row] = static_cast<double>(layout.lines++);
      continue;
    }
    stack.push_back({.row = row, .again = true});
    for (auto child = children.rbegin(); child != children.rend(); ++child) {
      stack.push_back({.row = *child, .again = false});
    }
  }
  return layout;
}

std::optional<QualityRange> quality_range(std::span<const LineageRow> rows, bool lower_is_better) {
  const auto better = [lower_is_better](double a, double b) { return lower_is_better ? a < b : a > b; };
  std::optional<QualityRange> range;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (!rows[i].quality || !std::isfinite(*rows[i].quality)) continue;
    const double quality = *rows[i].quality;
    if (!range) range = QualityRange{.worst = quality, .best = quality, .best_row = i};
    if (better(range->worst, quality)) range->worst = quality;
    if (better(quality, range->best)) {
      range->best = quality;
      range->best_row = i;
    }
  }
  return range;
}

double QualityRange::share(double quality) const {
  const double width = best - worst;
  // Differences of huge numbers may be infinite.
  return width != 0 && std::isfinite(width) ? (quality - worst) / width : 1.0;
}

std::string colour_at(double share) {
  // Its lightness grows steadily, so that the order is seen by everybody, and in print.
  struct Colour {
    double red;
    double green;
    double blue;
  };
  constexpr std::array<Colour, 5> kStops = {Colour{62, 38, 118}, Colour{52, 96, 158}, Colour{32, 150, 140},
                                            Colour{116, 200, 90}, Colour{250, 226, 60}};
  const double at = std::clamp(share, 0.0, 1.0) * (kStops.size() - 1);
  const auto below = std::min(static_cast<std::size_t>(at), kStops.size() - 2);
  const double rest = at - static_cast<double>(below);
  const auto mixed = [rest](double from, double to) {
    return static_cast<int>(std::lround(from + rest * (to - from)));
  };
  return format("#{:02x}{:02x}{:02x}", mixed(kStops[below].red, kStops[below + 1].red),
                mixed(kStops[below].green, kStops[below + 1].green), mixed(kStops[below].blue, kStops[below + 1].blue));
}

std::string quality_colour(const std::optional<double>& quality, const std::optional<QualityRange>& range) {
  if (!quality || !std::isfinite(*quality) || !range) return "#c8c8c8";
  return colour_at(range->share(*quality));
}

}  // namespace freshet
