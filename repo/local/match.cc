// SPDX-License-Identifier: Apache-2.0
/// The best ancestor: the match index beside the catalog, and what is asked of it.

#include <algorithm>
#include <unordered_map>

#include "core/model/proved_forms.h"
#include "repo/local/local_repository.h"

namespace freshet {
namespace {

using Graphs = std::unordered_map<Digest, std::shared_ptr<const MatchGraph>>;

struct Stored {
  VersionName name;
  std::shared_ptr<const VersionRow> row;
};

// In the order of their commits.
std::vector<Stored> in_commit_order(const Catalog& catalog) {
  std::vector<Stored> versions;
  versions.reserve(catalog.versions());
  for (const auto& [model, numbers] : catalog.models()) {
    for (const auto& [number, entry] : numbers) {
      if (entry.row != nullptr) versions.push_back({.name = {.model = model, .number = number}, .row = entry.row});
    }
  }
  std::ranges::stable_sort(versions, {}, [](const Stored& stored) { return stored.row->commit; });
  return versions;
}

IndexEntry entry_of(const VersionName& name, const VersionRow& row, std::shared_ptr<const MatchGraph> graph) {
  return {.name = name,
          .id = row.id,
          .graph = std::move(graph),
          .quality = row.quality,
          .has_weights = row.has_weights,
          .commit = row.commit,
          .tags = row.tags,
          .ancestor = row.ancestor};
}

}  // namespace

Backend::Put LocalRepository::Impl::commit_record(std::uint64_t number) {
  return {std::string(kCommitKey), std::to_string(number)};
}

Result<std::shared_ptr<const MatchGraph>> LocalRepository::Impl::stored_graph(const Digest& digest,
                                                                              ConfigHashes& configs) const {
  FRESHET_ASSIGN(const std::string stored, backend->get(architecture_key(digest)));
  const Bytes encoded = bytes_of(stored.data(), stored.size());
  if (digest_of(encoded) != digest) return fail(Code::corrupt, "an architecture is damaged");
  FRESHET_ASSIGN(const Architecture::Parts parts, decode_architecture_parts(encoded));
  return MatchGraph::of(parts, configs);
}

Status LocalRepository::Impl::index_catalog(const Catalog& loaded) {
  std::uint64_t greatest = 0;
  if (const Result<std::string> stored = backend->get(kCommitKey)) {
    FRESHET_ASSIGN(greatest, parse_number(*stored));
  } else if (stored.error().code() != Code::not_found) {
    return fail(stored.error());
  }
  Graphs known;
  ConfigHashes configs;
  for (const Stored& version : in_commit_order(loaded)) {
    const VersionRow& row = *version.row;
    greatest = std::max(greatest, row.commit);
    if (row.retired) {
      index.add_tombstone(row.id, row.ancestor);
      continue;
    }
    std::shared_ptr<const MatchGraph>& graph = known[row.architecture];
    if (graph == nullptr) {
      auto stored = stored_graph(row.architecture, configs);
      // Damage is found by those who ask for the version; it keeps nobody else from an answer.
      if (!stored) continue;
      graph = std::move(*stored);
    }
    // What is in the index already stands there as it was before a failed write, after which this catalog was read
    // anew; that write may have been one that changed what is said of it.
    if (!index.insert(entry_of(version.name, row, graph), 0)) index.restate(row.id, row.quality, row.tags, 0);
  }
  {
    const MutexLock lock(mutex);
    for (const Stored& before : in_commit_order(catalog)) {
      const auto now = loaded.row_of(before.row->id);
      if (now == nullptr || now->retired) index.retire(before.row->id, 0);
    }
  }
  commit = greatest;
  index.set_as_of(greatest);
  return {};
}

void LocalRepository::Impl::index_version(const VersionName& name, const VersionRow& row,
                                          const Architecture& architecture) {
  auto graph = graphs.find(row.architecture);
  if (graph == nullptr) {
    graph = MatchGraph::of(architecture);
    graphs.add(row.architecture, graph);
  }
  // It can only fail for a version that is there, and the catalog would not have taken that.
  (void)index.insert(entry_of(name, row, std::move(graph)), row.commit);
}

void LocalRepository::Impl::unindex_version(const VersionId& id, std::uint64_t at_commit) {
  index.retire(id, at_commit);
}

Result<MatchAnswer> LocalRepository::match(const MatchQuery& query) {
  FRESHET_TRY(check(query));
  std::optional<VersionId> excluded;
  if (query.exclude_lineage) {
    FRESHET_ASSIGN(const Catalog::Found found, impl_->find(*query.exclude_lineage));
    excluded = found.row->id;
  }
  if (query.pin_by.empty()) return impl_->index.match(query, excluded);

  // Whoever retires takes the turn as well, so what is found here is still there when it is pinned.
  const MutexLock turn(impl_->turn);
  FRESHET_TRY(impl_->ready_to_write());
  MatchAnswer answer = impl_->index.match(query, excluded);
  if (!answer.top.empty()) FRESHET_TRY(impl_->add_pin(answer.top.front().version, query.pin_by, query.pin_terms));
  return answer;
}

}  // namespace freshet
