// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Which versions have which layers: answers a MatchQuery exactly, and independently of how many versions there are in
/// the usual case.
///
/// A repository keeps one beside its catalog; a process that follows the commits of others can feed one itself. It
/// holds nothing durable.

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/digest.h"
#include "repo/match/query.h"

namespace freshet {

/// How a tag stands in an index: the digest of its key and value.
Digest tag_digest(const std::string& key, const std::string& value);

/// A version, as an index keeps it.
struct IndexEntry {
  VersionName name;
  VersionId id;
  std::shared_ptr<const MatchGraph> graph;
  std::optional<double> quality;  ///< NaN is as good as none.
  bool has_weights = true;
  std::uint64_t commit = 0;
  std::vector<Digest> tags;  ///< Any order.
  std::optional<VersionId> ancestor;
};

/// match(), as_of() and memory(): any thread. insert(), retire() and the others that change it: any thread, one at a
/// time each.
class StructureIndex {
 public:
  StructureIndex();
  ~StructureIndex();

  /// The version is in all answers from now on, which are as of `as_of`, if that is greater than it was. already_exists
  /// for an id that is there.
  Status insert(const IndexEntry& entry, std::uint64_t as_of);
  /// The version is in no answer any more; its place in lineages stays. False when there is none of that id.
  bool retire(const VersionId& id, std::uint64_t as_of);
  /// False when there is none of that id.
  bool set_quality(const VersionId& id, std::optional<double> quality, std::uint64_t as_of);
  /// The same with its tags, in one step for readers. What stands as it did costs little.
  bool restate(const VersionId& id, std::optional<double> quality, const std::vector<Digest>& tags,
               std::uint64_t as_of);
  /// A version that was retired before this index was made: its line only.
  void add_tombstone(const VersionId& id, const std::optional<VersionId>& ancestor);
  /// For commits that change nothing here.
  void set_as_of(std::uint64_t as_of);

  std::uint64_t as_of() const;
  /// `excluded` and its ancestors are in no row, as far as the line is known here; query.exclude_lineage and
  /// query.pin_by are the caller's business. REQUIRES: check(query) passes.
  MatchAnswer match(const MatchQuery& query, const std::optional<VersionId>& excluded = std::nullopt) const;

  struct Memory {
    std::uint64_t models = 0;         ///< Versions that can be in an answer.
    std::uint64_t architectures = 0;  ///< Different ones.
    std::uint64_t graph_bytes = 0;    ///< Of their slot ids and edges.
    std::uint64_t index_bytes = 0;    ///< All the rest, which is:
    std::uint64_t version_bytes = 0;  ///< The versions and their names, tags and places in lists.
    std::uint64_t line_bytes = 0;     ///< Which version came from which; stays when versions go.
    std::uint64_t group_bytes = 0;    ///< What each architecture has beside its graph.
    std::uint64_t slot_bytes = 0;     ///< The table of slots, and a posting for each run of them.
    std::uint64_t list_bytes = 0;     ///< Postings' lists of groups.
  };
  Memory memory() const;

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace freshet
