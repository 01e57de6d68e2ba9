// SPDX-License-Identifier: Apache-2.0
/// Who came from whom, answered from the catalog alone.

#include <algorithm>
#include <deque>
#include <utility>

#include "repo/local/local_repository.h"

namespace freshet {
namespace {

using Node = VersionForest::Node;

// A long answer is gathered in turns of so many versions, and others may take the catalog's lock between them.
constexpr std::size_t kVersionsPerTurn = 1024;

// The ancestor's name here. One that is not stored goes by the name that the manifest gave, unless another version has
// it.
VersionName ancestor_name(const Catalog& catalog, const VersionForest& forest, Node node) {
  const VersionRow& row = *forest.row(node);
  if (!row.ancestor) return {};
  const Node parent = forest.parent(node);
  if (parent != VersionForest::kNone && forest.is_stored(parent)) return forest.name(parent);
  if (auto stored = catalog.find(*row.ancestor)) return *std::move(stored);  // A circle that was cut here.
  return catalog.has_name(row.ancestor_name) ? VersionName{} : row.ancestor_name;
}

LineageRow lineage_row(const Catalog& catalog, const VersionForest& forest, Node node) {
  const VersionRow& row = *forest.row(node);
  return {.version = forest.name(node),
          .ancestor = ancestor_name(catalog, forest, node),
          .inherited_bytes = row.inherited_bytes,
          .own_bytes = row.own_bytes,
          .quality = row.quality,
          .retired = row.retired};
}

/// A version's node in the forest that the catalog had then. Nodes only ever join a forest, so a walk that lets go of
/// the lock in between goes on where it was.
struct Place {
  std::shared_ptr<const VersionForest> forest;
  Node node = VersionForest::kNone;
};

Result<Place> place_of(const LocalRepository::Impl& impl, const VersionName& name) {
  const MutexLock lock(impl.known.mutex);
  FRESHET_ASSIGN(const Node node, impl.if_current(impl.known.catalog.node_of(name)));
  return Place{.forest = impl.known.catalog.forest(), .node = node};
}

}  // namespace

Result<std::vector<LineageRow>> LocalRepository::lineage(const VersionName& name) const {
  FRESHET_ASSIGN(const Place place, place_of(*impl_, name));
  const VersionForest& forest = *place.forest;
  std::vector<LineageRow> rows;
  Node at = place.node;
  while (at != VersionForest::kNone) {
    const MutexLock lock(impl_->known.mutex);
    if (rows.empty()) rows.reserve(forest.depth(at) + 1);
    for (std::size_t i = 0; i < kVersionsPerTurn && at != VersionForest::kNone; ++i) {
      if (!forest.is_stored(at)) return impl_->if_current(std::move(rows));
      rows.push_back(lineage_row(impl_->known.catalog, forest, at));
      at = forest.parent(at);
    }
  }
  return impl_->if_current(std::move(rows));
}

Result<std::optional<VersionName>> LocalRepository::mrca(const VersionName& a, const VersionName& b) const {
  const MutexLock lock(impl_->known.mutex);
  FRESHET_ASSIGN(const Node node_a, impl_->if_current(impl_->known.catalog.node_of(a)));
  FRESHET_ASSIGN(const Node node_b, impl_->if_current(impl_->known.catalog.node_of(b)));
  const auto forest = impl_->known.catalog.forest();
  const Node common = forest->mrca(node_a, node_b);
  std::optional<VersionName> name;
  if (common != VersionForest::kNone) name = forest->name(common);
  return impl_->if_current(std::move(name));
}

Result<std::vector<LineageRow>> LocalRepository::descendants(const VersionName& name) const {
  FRESHET_ASSIGN(const Place place, place_of(*impl_, name));
  const VersionForest& forest = *place.forest;
  std::vector<LineageRow> rows;
  std::deque<Node> parents{place.node};
  Node child = VersionForest::kNone;
  while (!parents.empty()) {
    const MutexLock lock(impl_->known.mutex);
    for (std::size_t i = 0; i < kVersionsPerTurn && !parents.empty(); ++i) {
      child = child == VersionForest::kNone ? forest.first_child(parents.front()) : forest.next_sibling(child);
      if (child == VersionForest::kNone) {
        parents.pop_front();
      } else {
        rows.push_back(lineage_row(impl_->known.catalog, forest, child));
        parents.push_back(child);
      }
    }
  }
  return impl_->if_current(std::move(rows));
}

Result<std::vector<LineageRow>> LocalRepository::versions(const std::string& model) const {
  const Impl& impl = *impl_;
  const MutexLock lock(impl.known.mutex);
  const Catalog& catalog = impl.known.catalog;
  const auto found = catalog.models().find(model);
  if (found == catalog.models().end()) {
    return impl.if_current(Result<std::vector<LineageRow>>(fail(catalog.find(VersionName{.model = model}).error())));
  }
  const auto forest = catalog.forest();
  std::vector<LineageRow> rows;
  for (const auto& [number, entry] : found->second) {
    VersionName name{.model = model, .number = number};
    rows.push_back(entry.row != nullptr ? lineage_row(catalog, *forest, forest->find(entry.row->id))
                                        : LineageRow{.version = std::move(name)});
  }
  return impl_->if_current(std::move(rows));
}

}  // namespace freshet
