// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Which version descends from which, in memory. Each version has one ancestor at most, so they form a forest; a jump
/// pointer for each node (Myers, "An applicative random-access stack", 1983) answers questions about lines of
/// ancestors in O(log depth) steps, with one more number for each version. Private to this room.
///
/// An ancestor that is not stored holds a place of its own, so that siblings find each other when it comes later.
/// Ancestors come from outside and may lead back to where they began: such a circle is cut, so every walk ends.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/model/ids.h"
#include "repo/records/records.h"

namespace freshet {

/// One thread at a time. Nodes are never removed, and keep their numbers.
class VersionForest {
 public:
  using Node = std::uint32_t;
  static constexpr Node kNone = std::numeric_limits<Node>::max();

  /// Adds a version, or gives the version of that identity another row (its line stays). O(1) when its ancestor came
  /// before it and its children after it; otherwise as many steps as it has descendants.
  Node set(const VersionName& name, std::shared_ptr<const VersionRow> row);
  /// set() for many at once, in any order. No other function may be called before settle(), which takes them all.
  void set_unsettled(const VersionName& name, std::shared_ptr<const VersionRow> row) {
    unsettled_.emplace_back(name, std::move(row));
  }
  void settle();

  /// The stored version of that identity; kNone when it is not stored.
  Node find(const VersionId& id) const;
  /// Whether a version of that identity with that ancestor would be an ancestor of itself.
  bool closes_circle(const VersionId& id, const VersionId& ancestor) const;

  // Of one node. A node that is not stored has no row, and is the ancestor of somebody.
  bool is_stored(Node node) const { return nodes_[node].row != nullptr; }
  const VersionName& name(Node node) const { return nodes_[node].name; }
  const std::shared_ptr<const VersionRow>& row(Node node) const { return nodes_[node].row; }
  std::uint32_t depth(Node node) const { return nodes_[node].depth; }
  Node parent(Node node) const { return nodes_[node].parent; }
  /// Children in the order in which they became known: first_child(node), then next_sibling() until kNone.
  Node first_child(Node node) const { return nodes_[node].first_child; }
  Node next_sibling(Node node) const { return nodes_[node].next_sibling; }

  /// The ancestor of `node` at that depth. REQUIRES: depth <= depth(node).
  Node ancestor_at(Node node, std::uint32_t depth) const;
  /// A version counts as its own ancestor here.
  bool is_ancestor(Node ancestor, Node of) const;
  /// The most recent stored version on both lines; kNone when they never meet in one.
  Node mrca(Node a, Node b) const;

  std::size_t size() const { return nodes_.size(); }

 private:
  struct Entry {
    VersionName name;                       ///< Empty while it is not stored.
    std::shared_ptr<const VersionRow> row;  ///< Null while it is not stored.
    VersionId id;
    Node parent = kNone;
    Node jump = kNone;  ///< An ancestor; itself at a root.
    std::uint32_t depth = 0;
    Node first_child = kNone;
    Node last_child = kNone;
    Node next_sibling = kNone;
  };

  Node place_of(const VersionId& id);
  Node root_of(Node node) const { return ancestor_at(node, 0); }
  void attach(Node node, Node parent);
  void detach(Node node);
  void label(Node node);
  void label_subtree(Node top, std::vector<bool>* labelled);
  Node where_to_cut(Node inside) const;

  std::vector<Entry> nodes_;
  std::vector<std::pair<VersionName, std::shared_ptr<const VersionRow>>> unsettled_;
  std::unordered_map<VersionId, Node> by_id_;
};

}  // namespace freshet
