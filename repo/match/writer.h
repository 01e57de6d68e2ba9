// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Who changes the index: one thread at a time, beside any number of readers.

#include <array>
#include <memory>
#include <string_view>
#include <vector>

#include "repo/match/epochs.h"
#include "repo/match/flat_set.h"
#include "repo/match/shelf.h"
#include "repo/match/structure_index.h"

namespace freshet::detail {

/// Every change ends with publish(), which makes it visible as a whole.
class IndexWriter {
 public:
  IndexWriter(Shelf& shelf, Epochs& epochs);
  ~IndexWriter();

  /// What readers begin with. Any thread.
  const std::atomic<const View*>& view() const { return view_; }

  Status insert(const IndexEntry& entry);
  bool retire(const VersionId& id);
  /// Its tags too, unless they are null.
  bool restate(const VersionId& id, const std::optional<double>& quality, const std::vector<Digest>* tags);
  void add_line(const VersionId& id, const std::optional<VersionId>& ancestor);
  void publish(std::uint64_t as_of);

  StructureIndex::Memory memory() const;

 private:
  // Names, lines and tags that versions share.
  std::uint32_t life_of(const VersionId& id);
  std::uint32_t kin_of(const VersionId& id);
  std::uint32_t model_of(const std::string& name);
  std::uint32_t tag_set_of(std::vector<Digest> digests);
  void leave_model(std::uint32_t model);
  void leave_tag_set(std::uint32_t tags);

  // Versions: in repo/match/version_lists.cc.
  std::uint32_t new_version(const Version& like);
  void link(std::uint32_t version);
  void unlink(std::uint32_t version);
  /// A place in a group's list: a version, or, being kNone, where the list begins.
  struct Place;
  std::uint32_t next(const Place& place, unsigned level) const;
  void set_next(const Place& place, unsigned level, std::uint32_t next);
  std::array<Place, 1 + Tower::kLevels> places_before(const Version& version) const;
  void give_back_tower(std::uint32_t& tower);
  void end(std::uint32_t version);

  // Groups: in repo/match/groups.cc, and what comes with a new one in repo/match/new_group.cc.
  std::uint32_t group_of(const MatchGraph& graph);
  class NewGroup;
  void add_slots(std::uint32_t group, const MatchGraph& graph);
  void remove_group(std::uint32_t group);
  void remove_slots(std::uint32_t group);
  void remove_slot(std::uint32_t group, const SlotId& slot);

  std::uint32_t new_posting(const SlotId& slot, std::uint32_t group);
  /// One of the same groups, for a run that was a part of its run; all else is to be set.
  std::uint32_t copy_posting(std::uint32_t like);
  static std::uint32_t dead_in(const Posting& posting);
  void append(std::uint32_t posting, std::uint32_t group);
  void drop_removed(std::uint32_t posting);
  void set_groups(Posting& posting, const std::vector<std::uint32_t>& groups, std::uint32_t room, std::uint32_t dead);
  void delete_block(Posting::Block* block);
  void leave_posting_of(std::uint32_t group);
  void leave_group(std::uint32_t group);

  void insert_cell(std::unique_ptr<CellTable>& table, std::uint64_t hash, Cell cell);
  /// What was unlinked in this change goes when no reader can see it.
  void later(std::function<void()> action) { deferred_.after(epoch_ + 1, std::move(action)); }

  struct GroupHash {
    const Shelf& shelf;
    std::uint64_t operator()(std::uint32_t group) const { return shelf.groups[group].graph->hash(); }
  };
  struct ModelHash {
    const Shelf& shelf;
    std::uint64_t operator()(std::uint32_t model) const {
      return std::hash<std::string_view>()(shelf.models[model].text());
    }
  };
  struct LifeHash {
    const Shelf& shelf;
    std::uint64_t operator()(std::uint32_t life) const {
      return hash_of({.run = shelf.lives[life].run, .incarnation = shelf.lives[life].incarnation});
    }
  };
  struct TagsHash {
    const Shelf& shelf;
    std::uint64_t operator()(std::uint32_t tags) const { return shelf.tag_sets[tags].digests.front().low; }
  };

  Shelf& shelf_;
  Epochs& epochs_;
  std::unique_ptr<CellTable> slots_;
  std::unique_ptr<CellTable> kin_;
  FlatSet<GroupHash> groups_;
  FlatSet<ModelHash> models_;
  FlatSet<LifeHash> lives_;
  FlatSet<TagsHash> tag_sets_;
  std::uint64_t epoch_ = 0;
  std::uint32_t groups_end_ = 0;  ///< Greater than every group's number.
  std::uint64_t random_ = 0x2545F4914F6CDD1DULL;
  std::uint64_t living_ = 0;  ///< Versions that can be in an answer.
  std::uint64_t graph_bytes_ = 0;
  std::uint64_t name_bytes_ = 0;   ///< Of models.
  std::uint64_t block_bytes_ = 0;  ///< Of postings.
  std::atomic<const View*> view_{nullptr};
  Deferred deferred_;  ///< Last: its actions use all the rest.
};

}  // namespace freshet::detail
