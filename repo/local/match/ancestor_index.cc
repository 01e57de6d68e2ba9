// SPDX-License-Identifier: Apache-2.0
#include "repo/local/match/ancestor_index.h"

#include <algorithm>
#include <utility>

#include "core/base/bytes.h"
#include "core/model/proved_forms.h"

namespace freshet {
namespace {

using StoredVersion = AncestorIndex::StoredVersion;

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

Result<std::shared_ptr<const MatchGraph>> AncestorIndex::stored_graph(const Digest& digest,
                                                                      ConfigHashes& configs) const {
  FRESHET_ASSIGN(const std::string stored, backend_.get(architecture_key(digest)));
  const Bytes encoded = bytes_of(stored.data(), stored.size());
  if (digest_of(encoded) != digest) return fail(Code::corrupt, "an architecture is damaged");
  FRESHET_ASSIGN(const Architecture::Parts parts, decode_architecture_parts(encoded));
  return MatchGraph::of(parts, configs);
}

std::vector<StoredVersion> AncestorIndex::stored_versions() const {
  const MutexLock lock(known_.mutex);
  return in_commit_order(known_.catalog);
}

void AncestorIndex::need() {
  late_index_.make([this](StructureIndex& index) { index_rows(stored_versions(), index); });
}

void AncestorIndex::catch_up(std::uint64_t commit, const std::vector<StoredVersion>& before) {
  late_index_.tell_all(commit, [&](StructureIndex& index) {
    index_rows(stored_versions(), index);
    const MutexLock lock(known_.mutex);
    for (const auto& [name, row] : before) {
      const auto now = known_.catalog.row_of(row->id);
      if (now == nullptr || now->retired) index.retire(row->id, 0);
    }
  });
}

void AncestorIndex::index_rows(const std::vector<StoredVersion>& rows, StructureIndex& index) {
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

KeptGraphs AncestorIndex::kept_graphs() const {
  // Far more than versions need: what has more bytes is not read, and is written anew.
  constexpr std::uint64_t kBytesMin = std::uint64_t{64} << 20;
  constexpr std::uint64_t kVersionBytes = std::uint64_t{64} << 10;
  const std::uint64_t versions = [&] {
    const MutexLock lock(known_.mutex);
    return known_.catalog.versions();
  }();
  return KeptGraphs(backend_.derived(kKeptGraphsName, kBytesMin + versions * kVersionBytes).value_or(""));
}

void AncestorIndex::keep_graphs(const KeptGraphs& kept, const Graphs& made, const std::unordered_set<Digest>& live) {
  if (backend_.read_only()) return;
  std::string fresh;
  for (const auto& [architecture, graph] : made) {
    if (graph != nullptr) fresh += encode_kept_graph(architecture, *graph);
  }
  std::string needed;
  for (const Digest& architecture : live) needed += kept.entry(architecture);
  // What a put kept since the text was read may go: whoever misses it makes it again.
  const MutexLock lock(keeping_);
  // Where nothing was kept, there may be a text that is too long to be read.
  if (!kept.is_whole() || kept.bytes() == 0 || needed.size() < kept.bytes() / 2) {
    backend_.keep_derived(kKeptGraphsName, needed + fresh, Backend::Derived::instead);
  } else if (!fresh.empty()) {
    backend_.keep_derived(kKeptGraphsName, fresh, Backend::Derived::behind);
  }
}

void AncestorIndex::keep_graphs_of(const std::vector<std::shared_ptr<const Architecture>>& architectures) {
  std::string fresh;
  for (const auto& architecture : architectures) {
    fresh += encode_kept_graph(architecture->digest(), *graph_of(*architecture));
  }
  if (fresh.empty()) return;
  const MutexLock lock(keeping_);
  backend_.keep_derived(kKeptGraphsName, fresh, Backend::Derived::behind);
}

std::shared_ptr<const MatchGraph> AncestorIndex::graph_of(const Architecture& architecture) {
  auto graph = graphs_.find(architecture.digest());
  if (graph == nullptr) {
    graph = MatchGraph::of(architecture);
    graphs_.add(architecture.digest(), graph);
  }
  return graph;
}

void AncestorIndex::add(const VersionName& name, const VersionRow& row,
                        std::shared_ptr<const Architecture> architecture) {
  late_index_.tell(row.commit, [this, name, row, architecture = std::move(architecture)](StructureIndex& index) {
    // It can only fail for a version that is there: the index was made of a catalog that had it.
    static_cast<void>(index.insert(entry_of(name, row, graph_of(*architecture)), row.commit));
  });
}

void AncestorIndex::retire(const VersionId& id, std::uint64_t at_commit) {
  late_index_.tell(at_commit, [=](StructureIndex& index) { index.retire(id, at_commit); });
}

bool AncestorIndex::is_readable(const MatchRow& row) {
  Digest architecture;
  {
    const MutexLock lock(known_.mutex);
    const auto stored = known_.catalog.row_of(row.id);
    // It was retired just now, after the answer.
    if (stored == nullptr || stored->retired) return true;
    architecture = stored->architecture;
  }
  {
    const MutexLock lock(proved_mutex_);
    if (proved_architectures_.count(architecture) != 0) return true;
  }
  if (architectures_.is_damaged(architecture)) {
    std::vector<VersionId> lost;
    for (const auto& [name, stored] : stored_versions()) {
      if (!stored->retired && stored->architecture == architecture) lost.push_back(stored->id);
    }
    // Asked once more: a retirement may have erased it, and a put may bring it again for versions that come later.
    if (architectures_.is_damaged(architecture)) {
      for (const VersionId& id : lost) late_index_.drop(id);
      return false;
    }
  }
  const MutexLock lock(proved_mutex_);
  proved_architectures_.insert(architecture);
  return true;
}

MatchAnswer AncestorIndex::match(const MatchQuery& query, const std::optional<VersionId>& excluded) {
  for (;;) {
    MatchAnswer answer = late_index_.index().match(query, excluded);
    // Each round takes versions out of the index.
    if (std::ranges::all_of(answer.top, [this](const MatchRow& row) { return is_readable(row); })) return answer;
  }
}

void AncestorIndex::restate(const VersionRow& row, std::uint64_t at_commit) {
  late_index_.tell(
      at_commit, [row, at_commit](StructureIndex& index) { index.restate(row.id, row.quality, row.tags, at_commit); });
}

}  // namespace freshet
