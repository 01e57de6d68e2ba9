// SPDX-License-Identifier: Apache-2.0
#include "repo/lineage/lineage_fold.h"

#include <algorithm>

namespace freshet {
namespace {

constexpr std::size_t kNobody = LineageLayout::kNone;
constexpr std::size_t kChainMin = 3;  ///< Fewer versions than this take no more room than the mark for them.
constexpr std::size_t kBranchMin = 4;

/// The rows as trees. The last entry of `children` has the rows at which trees begin.
class Trees {
 public:
  Trees(std::span<const LineageRow> rows, std::size_t kept)
      : rows_(rows), kept_(kept), parent_(layout_of(rows).parent), children_(rows.size() + 1), size_(rows.size(), 1) {
    has_kept_.assign(rows.size(), false);
    for (std::size_t i = 0; i < rows.size(); ++i) children_[above(i)].push_back(i);
    // Parents before their children.
    std::vector<std::size_t> order = children_.back();
    for (std::size_t at = 0; at < order.size(); ++at) {
      order.insert(order.end(), children_[order[at]].begin(), children_[order[at]].end());
    }
    for (auto row = order.rbegin(); row != order.rend(); ++row) {
      if (*row == kept_) has_kept_[*row] = true;
      if (parent_[*row] == kNobody) continue;
      size_[parent_[*row]] += size_[*row];
      if (has_kept_[*row]) has_kept_[parent_[*row]] = true;
    }
  }

  /// With branches of up to `small` versions folded.
  std::vector<LineageMark> marks(std::size_t small) const {
    std::vector<LineageMark> all;
    std::vector<std::size_t> open = {rows_.size()};
    while (!open.empty()) {
      const std::size_t at = open.back();
      open.pop_back();
      fold_branches(at, small, all);
      for (const std::size_t child : children_[at]) {
        if (!is_small(child, small)) open.push_back(add_chain(child, small, all));
      }
    }
    return all;
  }

 private:
  std::size_t above(std::size_t row) const { return parent_[row] == kNobody ? rows_.size() : parent_[row]; }
  bool is_small(std::size_t row, std::size_t small) const { return size_[row] <= small && !has_kept_[row]; }

  /// The only branch of this row that is not small; kNobody if it has none, or several.
  std::size_t trunk(std::size_t row, std::size_t small) const {
    std::size_t only = kNobody;
    for (const std::size_t child : children_[row]) {
      if (is_small(child, small)) continue;
      if (only != kNobody) return kNobody;
      only = child;
    }
    return only;
  }
  bool is_link(std::size_t row, std::size_t small) const {
    return row != kept_ && parent_[row] != kNobody && trunk(row, small) != kNobody;
  }

  void add_branch(std::size_t from, std::vector<std::size_t>& rows) const {
    std::vector<std::size_t> order = {from};
    for (std::size_t at = 0; at < order.size(); ++at) {
      order.insert(order.end(), children_[order[at]].begin(), children_[order[at]].end());
    }
    rows.insert(rows.end(), order.begin(), order.end());
  }

  LineageMark mark_of(const std::vector<std::size_t>& rows, std::size_t last) const {
    LineageMark mark{.row = rows_[last], .folded = rows};
    mark.row.ancestor = rows_[rows.front()].ancestor;
    mark.row.retired = true;
    mark.row.own_bytes = mark.row.inherited_bytes = 0;
    mark.row.quality.reset();
    for (const std::size_t row : rows) {
      mark.row.retired = mark.row.retired && rows_[row].retired;
      mark.row.own_bytes += rows_[row].own_bytes;
    }
    return mark;
  }

  /// Adds the row, or the chain that begins with it. Answers the row where the drawing goes on.
  std::size_t add_chain(std::size_t row, std::size_t small, std::vector<LineageMark>& all) const {
    std::vector<std::size_t> chain;
    std::size_t last = row;
    for (std::size_t at = row; is_link(at, small); at = trunk(at, small)) {
      last = at;
      chain.push_back(at);
      for (const std::size_t child : children_[at]) {
        if (is_small(child, small)) add_branch(child, chain);
      }
    }
    if (chain.size() < kChainMin) {
      all.push_back({.row = rows_[row], .folded = {}});
      return row;
    }
    all.push_back(mark_of(chain, last));
    // The branches of the last link are in the mark; the rest goes on with the trunk.
    return add_chain(trunk(last, small), small, all);
  }

  void fold_branches(std::size_t at, std::size_t small, std::vector<LineageMark>& all) const {
    std::vector<std::size_t> branches;
    for (const std::size_t child : children_[at]) {
      if (is_small(child, small)) add_branch(child, branches);
    }
    if (branches.size() >= kBranchMin) {
      all.push_back(mark_of(branches, branches.front()));
      return;
    }
    for (const std::size_t row : branches) all.push_back({.row = rows_[row], .folded = {}});
  }

  std::span<const LineageRow> rows_;
  std::size_t kept_;
  std::vector<std::size_t> parent_;
  std::vector<std::vector<std::size_t>> children_;
  std::vector<std::size_t> size_;  ///< Versions of the branch that begins with a row.
  std::vector<bool> has_kept_;
};

}  // namespace

LineageLayout layout_of(std::span<const LineageMark> marks) {
  std::vector<LineageRow> rows;
  for (const LineageMark& mark : marks) rows.push_back(mark.row);
  return layout_of(rows);
}

std::vector<LineageMark> folded(std::span<const LineageRow> rows, std::size_t kept, const FoldLimits& limits) {
  std::vector<LineageMark> marks;
  for (const LineageRow& row : rows) marks.push_back({.row = row, .folded = {}});
  LineageLayout layout = layout_of(marks);
  if (layout.columns <= limits.chain && layout.lines <= limits.lines) return marks;
  const Trees trees(rows, kept);
  for (std::size_t small = layout.columns > limits.chain ? 0 : 1;; small = std::max<std::size_t>(1, 2 * small)) {
    marks = trees.marks(small);
    layout = layout_of(marks);
    const bool fits = layout.columns <= limits.columns && layout.lines <= limits.lines;
    if (fits || small >= rows.size()) return marks;
  }
}

}  // namespace freshet
