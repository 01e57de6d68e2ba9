// SPDX-License-Identifier: Apache-2.0
#include "repo/local/catalog/version_forest.h"

#include <utility>

namespace freshet {

VersionForest::Node VersionForest::place_of(const VersionId& id) {
  const auto [found, added] = by_id_.try_emplace(id, static_cast<Node>(nodes_.size()));
  if (added) {
    Entry& entry = nodes_.emplace_back();
    entry.id = id;
    entry.jump = found->second;
  }
  return found->second;
}

void VersionForest::attach(Node node, Node parent) {
  nodes_[node].parent = parent;
  Entry& above = nodes_[parent];
  (above.last_child == kNone ? above.first_child : nodes_[above.last_child].next_sibling) = node;
  above.last_child = node;
}

void VersionForest::detach(Node node) {
  Entry& above = nodes_[std::exchange(nodes_[node].parent, kNone)];
  const Node next = std::exchange(nodes_[node].next_sibling, kNone);
  if (above.first_child == node) {
    above.first_child = next;
    if (above.last_child == node) above.last_child = kNone;
    return;
  }
  Node before = above.first_child;
  while (nodes_[before].next_sibling != node) before = nodes_[before].next_sibling;
  nodes_[before].next_sibling = next;
  if (above.last_child == node) above.last_child = before;
}

// A jump is as long as the two jumps before it together when those are equal, and a single step otherwise. So jumps
// have the lengths of skew-binary digits, and any depth is at most two of each digit away.
void VersionForest::label(Node node) {
  Entry& entry = nodes_[node];
  if (entry.parent == kNone) {
    entry.depth = 0;
    entry.jump = node;
    return;
  }
  const Entry& above = nodes_[entry.parent];
  const Entry& landing = nodes_[above.jump];
  const bool equal = above.depth - landing.depth == landing.depth - nodes_[landing.jump].depth;
  entry.depth = above.depth + 1;
  entry.jump = equal ? landing.jump : entry.parent;
}

void VersionForest::label_subtree(Node top, std::vector<bool>* labelled) {
  std::vector<Node> waiting{top};
  while (!waiting.empty()) {
    const Node node = waiting.back();
    waiting.pop_back();
    label(node);
    if (labelled != nullptr) (*labelled)[node] = true;
    for (Node child = first_child(node); child != kNone; child = next_sibling(child)) waiting.push_back(child);
  }
}

VersionForest::Node VersionForest::set(const VersionName& name, std::shared_ptr<const VersionRow> row) {
  const bool circle = row->ancestor && closes_circle(row->id, *row->ancestor);
  const Node node = place_of(row->id);
  const bool is_new = !is_stored(node);
  if (is_new && row->ancestor && !circle) {
    const Node parent = place_of(*row->ancestor);
    attach(node, parent);
  }
  nodes_[node].name = name;
  nodes_[node].row = std::move(row);
  if (is_new) label_subtree(node, nullptr);
  return node;
}

void VersionForest::settle() {
  // Room for all at once: to grow a table by doubling moves every entry again and again.
  nodes_.reserve(nodes_.size() + unsettled_.size());
  by_id_.reserve(by_id_.size() + unsettled_.size());
  for (auto& [name, row] : std::exchange(unsettled_, {})) {
    const Node node = place_of(row->id);
    if (!is_stored(node) && row->ancestor && *row->ancestor != row->id) {
      const Node parent = place_of(*row->ancestor);
      attach(node, parent);
    }
    nodes_[node].name = std::move(name);
    nodes_[node].row = std::move(row);
  }
  std::vector<bool> labelled(nodes_.size(), false);
  for (Node node = 0; node < nodes_.size(); ++node) {
    if (parent(node) == kNone) label_subtree(node, &labelled);
  }
  // What no root leads to hangs on a circle.
  for (Node node = 0; node < nodes_.size(); ++node) {
    if (labelled[node]) continue;
    const Node cut = where_to_cut(node);
    detach(cut);
    label_subtree(cut, &labelled);
  }
}

// The member of a circle with the least identity, whatever the order in which they came, so that every start of a
// repository cuts at the same place. REQUIRES: the line of `inside` ends in a circle.
VersionForest::Node VersionForest::where_to_cut(Node inside) const {
  Node slow = inside;
  Node fast = inside;
  do {
    slow = parent(slow);
    fast = parent(parent(fast));
  } while (slow != fast);
  Node least = slow;
  for (Node node = parent(slow); node != slow; node = parent(node)) {
    if (nodes_[node].id < nodes_[least].id) least = node;
  }
  return least;
}

VersionForest::Node VersionForest::find(const VersionId& id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() || !is_stored(found->second) ? kNone : found->second;
}

bool VersionForest::closes_circle(const VersionId& id, const VersionId& ancestor) const {
  if (id == ancestor) return true;
  const auto above = by_id_.find(ancestor);
  return above != by_id_.end() && nodes_[root_of(above->second)].id == id;
}

VersionForest::Node VersionForest::ancestor_at(Node node, std::uint32_t wanted) const {
  while (depth(node) > wanted) {
    const Node jump = nodes_[node].jump;
    node = depth(jump) >= wanted ? jump : parent(node);
  }
  return node;
}

bool VersionForest::is_ancestor(Node ancestor, Node of) const {
  return depth(ancestor) <= depth(of) && ancestor_at(of, depth(ancestor)) == ancestor;
}

VersionForest::Node VersionForest::mrca(Node a, Node b) const {
  if (depth(a) > depth(b)) std::swap(a, b);
  b = ancestor_at(b, depth(a));
  // At equal depths jumps have equal lengths: where they land apart, the meeting is further up.
  while (a != b && depth(a) > 0) {
    const bool apart = nodes_[a].jump != nodes_[b].jump;
    a = apart ? nodes_[a].jump : parent(a);
    b = apart ? nodes_[b].jump : parent(b);
  }
  return a == b && is_stored(a) ? a : kNone;
}

}  // namespace freshet
