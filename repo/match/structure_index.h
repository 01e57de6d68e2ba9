// SPDX-License-Identifier: Apache-2.0
#pragma once

/// An index of versions by their layers. It answers a MatchQuery exactly. In the usual case, its time does not depend
/// on the number of versions.
///
/// A repository keeps an index beside its catalog. A process that follows the commits of a repository can feed its own
/// index. An index holds nothing durable.

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/base/digest.h"
#include "repo/match/query.h"

namespace freshet {

/// The form of a tag in an index: the digest of its key and value.
Digest tag_digest(const std::string& key, const std::string& value);

/// A version in an index.
struct IndexEntry {
  VersionName name;
  VersionId id;
  std::shared_ptr<const MatchGraph> graph;
  std::optional<double> quality;  ///< NaN counts as none.
  bool has_weights = true;
  std::uint64_t commit = 0;
  std::vector<Digest> tags;  ///< Any order.
  std::optional<VersionId> ancestor;
};

/// Any thread. Searches go on side by side; a change waits for them, and they wait for a change.
class StructureIndex {
 public:
  StructureIndex();
  ~StructureIndex();

  /// From now on the version is in all answers. They are as of `as_of`, if that is greater than before. already_exists
  /// for an id that the index has.
  Status insert(const IndexEntry& entry, std::uint64_t as_of);
  /// From now on the version is in no answer; its place in lineages stays. False: no version has that id.
  bool retire(const VersionId& id, std::uint64_t as_of);
  /// False: no version has that id. Unchanged values cost little.
  bool restate(const VersionId& id, std::optional<double> quality, const std::vector<Digest>& tags,
               std::uint64_t as_of);
  /// A version that was retired before this index was made: only its place in the lineage.
  void add_tombstone(const VersionId& id, const std::optional<VersionId>& ancestor);
  /// For commits that change nothing here.
  void set_as_of(std::uint64_t as_of);

  /// `excluded` and its ancestors are in no row, as far as the index knows the lineage. The caller handles
  /// query.exclude_lineage and query.pin_by. REQUIRES: check(query) passes.
  MatchAnswer match(const MatchQuery& query, const std::optional<VersionId>& excluded = std::nullopt) const;

  struct Memory {
    std::uint64_t models = 0;         ///< Versions that can be in an answer.
    std::uint64_t architectures = 0;  ///< Different ones.
    std::uint64_t graph_bytes = 0;    ///< Of their slot ids and edges.
    std::uint64_t index_bytes = 0;    ///< All other bytes; the following are parts of it.
    std::uint64_t version_bytes = 0;  ///< The versions and their names, tags and places in lists.
    std::uint64_t line_bytes = 0;     ///< The lineage; stays when versions go.
    std::uint64_t group_bytes = 0;    ///< The data of each architecture besides its graph.
    std::uint64_t slot_bytes = 0;     ///< The table of slots, and a posting for each run of them.
    std::uint64_t list_bytes = 0;     ///< Postings' lists of groups.
  };
  Memory memory() const;

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace freshet
