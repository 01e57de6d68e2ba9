// SPDX-License-Identifier: Apache-2.0
/// The best ancestor: the match index beside the catalog, and what is asked of it.

#include <algorithm>
#include <unordered_map>

#include "core/model/proved_forms.h"
#include "repo/local/local_repository.h"

namespace freshet {
namespace {

using StoredVersion = LocalRepository::Impl::StoredVersion;

// In the order of their commits.
std::vector<StoredVersion> in_commit_order(const Catalog& catalog) {
  std::vector<StoredVersion> versions;
  versions.reserve(catalog.versions());
  for (const auto& [model, numbers] : catalog.models()) {
    for (const auto& [number, entry] : numbers) {
      if (entry.row != nullptr) versions.push_back({.name = {.model = model, .number = number}, .row = entry.row});
    }
  }
  std::ranges::stable_sort(versions, {}, [](const StoredVersion& stored) { return stored.row->commit; });
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

Result<std::uint64_t> LocalRepository::Impl::greatest_commit(const Catalog& loaded) const {
  std::uint64_t greatest = 0;
  if (const Result<std::string> stored = backend->get(kCommitKey)) {
    FRESHET_ASSIGN(greatest, parse_number(*stored));
  } else if (stored.error().code() != Code::not_found) {
    return fail(stored.error());
  }
  return std::max(greatest, loaded.greatest_commit());
}

std::vector<StoredVersion> LocalRepository::Impl::stored_versions() const {
  const MutexLock lock(mutex);
  return in_commit_order(catalog);
}

void LocalRepository::Impl::need_index() {
  late_index.make([this](StructureIndex& index) { index_rows(stored_versions(), index); });
}

void LocalRepository::Impl::index_again(const std::vector<StoredVersion>& before) {
  late_index.tell_all(commit, [&](StructureIndex& index) {
    index_rows(stored_versions(), index);
    const MutexLock lock(mutex);
    for (const auto& [name, row] : before) {
      const auto now = catalog.row_of(row->id);
      if (now == nullptr || now->retired) index.retire(row->id, 0);
    }
  });
}

void LocalRepository::Impl::index_rows(const std::vector<StoredVersion>& rows, StructureIndex& index) {
  const KeptGraphs kept = kept_graphs();
  Graphs made;
  std::unordered_set<Digest> live;
  ConfigHashes configs;
  Digest last;
  std::shared_ptr<const MatchGraph> graph;
  for (const auto& [name, row] : rows) {
    if (row->retired) {
      index.add_tombstone(row->id, row->ancestor);
      continue;
    }
    if (graph == nullptr || last != row->architecture) graph = kept.find(row->architecture);
    last = row->architecture;
    if (graph == nullptr) {
      std::shared_ptr<const MatchGraph>& one = made[row->architecture];
      if (one == nullptr) {
        auto stored = stored_graph(row->architecture, configs);
        // Damage is found by those who ask for the version; it keeps nobody else from an answer.
        if (!stored) continue;
        one = std::move(*stored);
      }
      graph = one;
    }
    live.insert(row->architecture);
    // What is in the index already stands there as it was before a failed write, after which this catalog was read
    // anew; that write may have been one that changed what is said of it.
    if (!index.insert(entry_of(name, *row, graph), 0)) index.restate(row->id, row->quality, row->tags, 0);
  }
  keep_graphs(kept, made, live);
}

KeptGraphs LocalRepository::Impl::kept_graphs() const {
  // Far more than versions need: what has more bytes is not read, and is written anew.
  constexpr std::uint64_t kBytesMin = std::uint64_t{64} << 20;
  constexpr std::uint64_t kVersionBytes = std::uint64_t{64} << 10;
  const std::uint64_t versions = [&] {
    const MutexLock lock(mutex);
    return catalog.versions();
  }();
  return KeptGraphs(backend->derived(kKeptGraphsName, kBytesMin + versions * kVersionBytes).value_or(""));
}

void LocalRepository::Impl::keep_graphs(const KeptGraphs& kept, const Graphs& made,
                                        const std::unordered_set<Digest>& live) {
  if (backend->read_only()) return;
  std::string fresh;
  for (const auto& [architecture, graph] : made) {
    if (graph != nullptr) fresh += encode_kept_graph(architecture, *graph);
  }
  std::string needed;
  for (const Digest& architecture : live) needed += kept.entry(architecture);
  // What a put kept since the text was read may go: whoever misses it makes it again.
  const MutexLock lock(keeping);
  // Where nothing was kept, there may be a text that is too long to be read.
  if (!kept.is_whole() || kept.bytes() == 0 || needed.size() < kept.bytes() / 2) {
    backend->keep_derived(kKeptGraphsName, needed + fresh, Backend::Derived::instead);
  } else if (!fresh.empty()) {
    backend->keep_derived(kKeptGraphsName, fresh, Backend::Derived::behind);
  }
}

void LocalRepository::Impl::keep_graphs_of(const std::vector<PutInProgress*>& puts) {
  std::string fresh;
  for (const PutInProgress* put : puts) {
    if (put->brings_architecture) {
      const Architecture& architecture = *put->manifest.architecture;
      fresh += encode_kept_graph(architecture.digest(), *graph_of(architecture));
    }
  }
  if (fresh.empty()) return;
  const MutexLock lock(keeping);
  backend->keep_derived(kKeptGraphsName, fresh, Backend::Derived::behind);
}

std::shared_ptr<const MatchGraph> LocalRepository::Impl::graph_of(const Architecture& architecture) {
  auto graph = graphs.find(architecture.digest());
  if (graph == nullptr) {
    graph = MatchGraph::of(architecture);
    graphs.add(architecture.digest(), graph);
  }
  return graph;
}

void LocalRepository::Impl::index_version(const VersionName& name, const VersionRow& row,
                                          std::shared_ptr<const Architecture> architecture) {
  late_index.tell(row.commit, [this, name, row, architecture = std::move(architecture)](StructureIndex& index) {
    // It can only fail for a version that is there: the index was made of a catalog that had it.
    static_cast<void>(index.insert(entry_of(name, row, graph_of(*architecture)), row.commit));
  });
}

void LocalRepository::Impl::unindex_version(const VersionId& id, std::uint64_t at_commit) {
  late_index.tell(at_commit, [=](StructureIndex& index) { index.retire(id, at_commit); });
}

bool LocalRepository::Impl::is_damaged(const Digest& architecture) const {
  const Result<std::string> stored = backend->get(architecture_key(architecture));
  if (stored) return digest_of(bytes_of(stored->data(), stored->size())) != architecture;
  return stored.error().code() == Code::corrupt || stored.error().code() == Code::not_found;
}

bool LocalRepository::Impl::is_readable(const MatchRow& row) {
  Digest architecture;
  {
    const MutexLock lock(mutex);
    const auto stored = catalog.row_of(row.id);
    // It was retired just now, after the answer.
    if (stored == nullptr || stored->retired) return true;
    architecture = stored->architecture;
  }
  {
    const MutexLock lock(proved_mutex);
    if (proved_architectures.count(architecture) != 0) return true;
  }
  if (is_damaged(architecture)) {
    std::vector<VersionId> lost;
    for (const auto& [name, stored] : stored_versions()) {
      if (!stored->retired && stored->architecture == architecture) lost.push_back(stored->id);
    }
    // Asked once more: a retirement may have erased it, and a put may bring it again for versions that come later.
    if (is_damaged(architecture)) {
      for (const VersionId& id : lost) late_index.drop(id);
      return false;
    }
  }
  const MutexLock lock(proved_mutex);
  proved_architectures.insert(architecture);
  return true;
}

MatchAnswer LocalRepository::Impl::readable_match(const MatchQuery& query, const std::optional<VersionId>& excluded) {
  for (;;) {
    MatchAnswer answer = late_index.index().match(query, excluded);
    // Each round takes versions out of the index.
    if (std::ranges::all_of(answer.top, [this](const MatchRow& row) { return is_readable(row); })) return answer;
  }
}

void LocalRepository::prepare_match() { impl_->need_index(); }

Result<MatchAnswer> LocalRepository::match(const MatchQuery& query) {
  FRESHET_TRY(check(query));
  std::optional<VersionId> excluded;
  if (query.exclude_lineage) {
    FRESHET_ASSIGN(const Catalog::Found found, impl_->find(*query.exclude_lineage));
    excluded = found.row->id;
  }
  impl_->need_index();
  if (query.pin_by.empty()) return impl_->if_current(impl_->readable_match(query, excluded));

  // Whoever retires takes the turn as well, so what is found here is still there when it is pinned.
  const MutexLock turn(impl_->turn);
  FRESHET_TRY(impl_->ready_to_write());
  MatchAnswer answer = impl_->readable_match(query, excluded);
  if (!answer.top.empty()) FRESHET_TRY(impl_->add_pin(answer.top.front().version, query.pin_by, query.pin_terms));
  return answer;
}

}  // namespace freshet
