// SPDX-License-Identifier: Apache-2.0
#pragma once

/// How the index changes.

#include <optional>
#include <string>
#include <vector>

#include "repo/match/shelf.h"
#include "repo/match/structure_index.h"

namespace freshet::detail {

/// One thread at a time, and no search meanwhile.
class IndexWriter {
 public:
  explicit IndexWriter(Shelf& shelf) : shelf_(shelf) {}

  Status insert(const IndexEntry& entry);
  bool retire(const VersionId& id);
  bool restate(const VersionId& id, const std::optional<double>& quality, const std::vector<Digest>& tags);
  void add_line(const VersionId& id, const std::optional<VersionId>& ancestor);
  /// Answers are as of this commit, or of a later one.
  void reach(std::uint64_t commit) { shelf_.as_of = std::max(shelf_.as_of, commit); }

  StructureIndex::Memory memory() const;

 private:
  // Names, lines and tags that versions share.
  std::uint32_t life_of(const VersionId& id);
  std::uint32_t kin_of(const VersionId& id);
  std::uint32_t model_of(const std::string& name);
  std::uint32_t tag_set_of(std::vector<Digest> digests);
  void leave_model(std::uint32_t model);
  void leave_tag_set(std::uint32_t tags);

  // A version in its group's list.
  std::vector<std::uint32_t>::iterator place_of(const Version& version);
  void link(std::uint32_t version);
  void unlink(std::uint32_t version);

  // Groups: in repo/match/groups.cc, and what comes with a new one in repo/match/new_group.cc.
  std::uint32_t group_of(const MatchGraph& graph);
  class NewGroup;
  void add_slots(std::uint32_t group, const MatchGraph& graph);
  void remove_group(std::uint32_t group);
  void remove_slot(std::uint32_t group, const SlotId& slot);

  std::uint32_t new_posting(const SlotId& slot, std::uint32_t group);
  /// One of the same groups, for a run that was a part of its run; all else is to be set.
  std::uint32_t copy_posting(std::uint32_t like);
  void append(Posting& posting, std::uint32_t group);
  void drop_removed(Posting& posting);
  static void set_groups(Posting& posting, const std::vector<std::uint32_t>& groups, std::size_t room,
                         std::uint32_t dead);
  void leave_group(std::uint32_t group);

  Shelf& shelf_;
  CellTable groups_;  ///< By hash of the graph.
  CellTable models_;
  CellTable lives_;
  CellTable tag_sets_;
};

}  // namespace freshet::detail
