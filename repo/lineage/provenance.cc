// SPDX-License-Identifier: Apache-2.0
/// What owner maps tell: who wrote a version's tensors, and what two versions have in common.

#include <algorithm>
#include <unordered_map>

#include "repo/lineage/provenance.h"
#include "repo/local/local_repository.h"

namespace freshet {
namespace {

using LayersBySlot = std::unordered_map<SlotId, const Layer*>;

LayersBySlot layers_by_slot(const Architecture& architecture) {
  LayersBySlot layers;
  layers.reserve(architecture.layers().size());
  for (std::size_t i = 0; i < architecture.layers().size(); ++i) {
    layers.emplace(architecture.slots()[i], &architecture.layers()[i]);
  }
  return layers;
}

std::vector<std::string> layers_missing(const Architecture& of, const LayersBySlot& other) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < of.layers().size(); ++i) {
    if (!other.contains(of.slots()[i])) names.push_back(of.layers()[i].name);
  }
  return names;
}

bool same_kind(const TensorSpec& a, const TensorSpec& b) { return same_form(a, b) && a.role == b.role; }

/// For each tensor of `b` its counterpart in `a`: at the same place of a layer that both have, or else of the same
/// name.
std::vector<std::optional<std::uint32_t>> counterparts(const Architecture& a, const LayersBySlot& layers_a,
                                                       const Architecture& b) {
  std::vector<std::optional<std::uint32_t>> of_b(b.tensors().size());
  for (std::size_t tensor = 0; tensor < of_b.size(); ++tensor) of_b[tensor] = a.tensor_named(b.tensors()[tensor].name);
  for (std::size_t i = 0; i < b.layers().size(); ++i) {
    const auto twin = layers_a.find(b.slots()[i]);
    if (twin == layers_a.end()) continue;
    std::unordered_map<std::string_view, std::uint32_t> there;
    for (const LayerTensor& tensor : twin->second->tensors) there.emplace(tensor.name, tensor.tensor);
    for (const LayerTensor& tensor : b.layers()[i].tensors) {
      if (const auto found = there.find(tensor.name); found != there.end()) of_b[tensor.tensor] = found->second;
    }
  }
  for (std::size_t tensor = 0; tensor < of_b.size(); ++tensor) {
    auto& other = of_b[tensor];
    if (other && !same_kind(a.tensors()[*other], b.tensors()[tensor])) other.reset();
  }
  return of_b;
}

}  // namespace

Result<std::vector<ContributorRow>> LocalRepository::contributors(const VersionName& name) const {
  FRESHET_ASSIGN(const VersionRecord record, get(name));
  if (!record.has_weights) return std::vector<ContributorRow>();
  const Manifest& manifest = record.manifest;
  const auto tensors = manifest.architecture->tensors();
  std::vector<ContributorRow> rows;
  std::unordered_map<VersionId, std::size_t> row_of;
  for (std::size_t tensor = 0; tensor < tensors.size(); ++tensor) {
    const VersionId& writer = manifest.owners[tensor].writer;
    const auto [found, added] = row_of.try_emplace(writer, rows.size());
    if (added) rows.push_back({.id = writer});
    ContributorRow& row = rows[found->second];
    ++row.tensor_count;
    row.bytes += tensors[tensor].bytes();
    row.tensors.push_back(tensors[tensor].name);
  }

  struct Ranked {
    std::uint32_t distance;  ///< Steps up the line; more than any line has for those beside it.
    std::size_t row;
  };
  std::vector<Ranked> order;
  {
    const MutexLock lock(impl_->known.mutex);
    const auto forest = impl_->known.catalog.forest();
    const VersionForest::Node self = forest->find(manifest.id);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const VersionForest::Node node = forest->find(rows[i].id);
      std::uint32_t distance = VersionForest::kNone;
      if (node != VersionForest::kNone) {
        rows[i].version = forest->name(node);
        rows[i].retired = forest->row(node)->retired;
        rows[i].is_ancestor = self != VersionForest::kNone && forest->is_ancestor(node, self);
        if (rows[i].is_ancestor) distance = forest->depth(self) - forest->depth(node);
      }
      order.push_back({.distance = distance, .row = i});
    }
  }
  std::ranges::sort(order, [&rows](const Ranked& a, const Ranked& b) {
    if (a.distance != b.distance) return a.distance < b.distance;
    if (rows[a.row].version != rows[b.row].version) return rows[a.row].version < rows[b.row].version;
    return rows[a.row].id < rows[b.row].id;
  });
  std::vector<ContributorRow> sorted;
  sorted.reserve(rows.size());
  for (const Ranked& ranked : order) sorted.push_back(std::move(rows[ranked.row]));
  return sorted;
}

VersionDiff diff_of(const VersionRecord& a, const VersionRecord& b,
                    const std::function<VersionName(const VersionId& writer)>& name_of) {
  const Architecture& graph_a = *a.manifest.architecture;
  const Architecture& graph_b = *b.manifest.architecture;
  const LayersBySlot layers_a = layers_by_slot(graph_a);
  VersionDiff diff{.layers_added = layers_missing(graph_b, layers_a),
                   .layers_removed = layers_missing(graph_a, layers_by_slot(graph_b)),
                   .quality_a = a.quality,
                   .quality_b = b.quality};
  if (!a.has_weights || !b.has_weights) return diff;
  const auto of_b = counterparts(graph_a, layers_a, graph_b);
  for (std::size_t tensor = 0; tensor < of_b.size(); ++tensor) {
    if (!of_b[tensor]) continue;
    const std::uint32_t other = *of_b[tensor];
    if (a.manifest.owners[other] == b.manifest.owners[tensor]) continue;
    if (a.manifest.digests[other] == b.manifest.digests[tensor]) continue;
    diff.tensors_changed.push_back({.name = graph_b.tensors()[tensor].name,
                                    .name_a = graph_a.tensors()[other].name,
                                    .bytes = graph_b.tensors()[tensor].bytes(),
                                    .owner_a = name_of(a.manifest.owners[other].writer),
                                    .owner_b = name_of(b.manifest.owners[tensor].writer)});
  }
  return diff;
}

Result<VersionDiff> LocalRepository::diff(const VersionName& name_a, const VersionName& name_b) const {
  FRESHET_ASSIGN(const VersionRecord a, get(name_a));
  FRESHET_ASSIGN(const VersionRecord b, get(name_b));
  const MutexLock lock(impl_->known.mutex);
  const Catalog* const catalog = &impl_->known.catalog;
  return diff_of(a, b, [&](const VersionId& writer) { return catalog->find(writer).value_or(VersionName{}); });
}

}  // namespace freshet
