// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The match index beside the catalog: which stored version is the best ancestor. Private to this room.

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/result.h"
#include "core/model/graph.h"
#include "repo/backend/backend.h"
#include "repo/local/catalog/locked_catalog.h"
#include "repo/local/match/kept_graphs.h"
#include "repo/local/match/late_index.h"
#include "repo/local/stored/architectures.h"
#include "repo/local/stored/recent.h"
#include "repo/match/structure_index.h"

namespace freshet {

/// Any thread asks. A writer that adds or removes versions holds the writers' turn, and tells the index after the
/// catalog and before the turn ends. A retirement tells it before as well, so that no answer names a version that is
/// gone.
class AncestorIndex {
 public:
  AncestorIndex(Backend& backend, const LockedCatalog& known, const StoredArchitectures& architectures)
      : backend_(backend), known_(known), architectures_(architectures) {}

  struct StoredVersion {
    VersionName name;
    std::shared_ptr<const VersionRow> row;
  };
  /// In the order of their commits.
  std::vector<StoredVersion> stored_versions() const;

  /// Makes the index unless it is made. Does not wait for the turn.
  void need();
  /// A graph that was kept tells nothing of the architecture's record, so that is looked at before its first answer.
  /// REQUIRES: need() returned.
  MatchAnswer match(const MatchQuery& query, const std::optional<VersionId>& excluded);

  void add(const VersionName& name, const VersionRow& row, std::shared_ptr<const Architecture> architecture);
  /// Quality and tags are those of the row from now on.
  void restate(const VersionRow& row, std::uint64_t at_commit);
  void retire(const VersionId& id, std::uint64_t at_commit);
  /// After the catalog was read anew, which had these versions before.
  void catch_up(std::uint64_t commit, const std::vector<StoredVersion>& before);

  KeptGraphs kept_graphs() const;
  /// The graphs of architectures that a batch brought.
  void keep_graphs_of(const std::vector<std::shared_ptr<const Architecture>>& architectures) FRESHET_EXCLUDES(keeping_);

 private:
  using Graphs = std::unordered_map<Digest, std::shared_ptr<const MatchGraph>>;

  void index_rows(const std::vector<StoredVersion>& rows, StructureIndex& index) FRESHET_EXCLUDES(keeping_);
  /// False: get() would say corrupt for its architecture. Then no version of that architecture is in the index any
  /// more.
  bool is_readable(const MatchRow& row) FRESHET_EXCLUDES(proved_mutex_);
  std::shared_ptr<const MatchGraph> graph_of(const Architecture& architecture);
  /// The parts of a stored architecture that a match looks at. Its digest shows that it passed all checks when it was
  /// put, so they are not made again: making the index would be mostly that.
  Result<std::shared_ptr<const MatchGraph>> stored_graph(const Digest& digest, ConfigHashes& configs) const;
  /// The kept graphs that somebody needs, those of `live`, when the others take more than half of the room; and with
  /// what had to be made anew.
  void keep_graphs(const KeptGraphs& kept, const Graphs& made, const std::unordered_set<Digest>& live)
      FRESHET_EXCLUDES(keeping_);

  Backend& backend_;
  const LockedCatalog& known_;
  const StoredArchitectures& architectures_;
  LateIndex late_index_;
  Recent<MatchGraph, 64> graphs_;
  Mutex keeping_;  ///< Held while kept graphs are written.
  Mutex proved_mutex_;
  /// Whose records had their digests when a match first named a version of them.
  std::unordered_set<Digest> proved_architectures_ FRESHET_GUARDED_BY(proved_mutex_);
};

}  // namespace freshet
