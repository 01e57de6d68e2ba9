// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The parts of the index.
///
/// Versions of the same slots are a **group**: an architecture is indexed once, however many versions have it. A
/// **slot** is in the table in one of two ways:
///   shared:   two or more groups had it. Its posting lists the groups that have it.
///   private:  one group alone has it, and every input of it is shared. Slots further down are that group's alone as
///             well, and are not in the table.
/// A shared slot that has one input alone, and is in every group that has that input, **follows** it: it is not in the
/// table and has no posting. A posting stands for its slot and for all that follow it, a **run**, as the edges of a
/// Patricia tree stand for strings (Morrison, 1968): the lists of a lineage of chains then follow from where its
/// members part, and not from how long they are. So a slot that is not in the table is in no group, or below a private
/// one, or follows its input; this is so if the oldest group of the input's posting has it.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "core/base/check.h"
#include "core/base/digest.h"
#include "core/model/ids.h"
#include "repo/match/cell_table.h"
#include "repo/match/numbered.h"
#include "repo/match/packed_graph.h"

namespace freshet::detail {

inline constexpr std::uint32_t kNone = ~std::uint32_t{0};
inline constexpr double kNoQuality = std::numeric_limits<double>::quiet_NaN();

struct Version {
  double quality = 0;  ///< NaN where it has none.
  std::uint64_t commit = 0;
  std::uint64_t number = 0;
  std::uint32_t model = kNone;
  std::uint32_t kin = kNone;
  std::uint32_t group : 31 = 0;
  std::uint32_t has_weights : 1 = 1;
  std::uint32_t tags = kNone;  ///< kNone: it has none.

  bool has_quality() const { return !std::isnan(quality); }
};
static_assert(sizeof(Version) == 40);

struct Group {
  std::vector<std::uint32_t> versions;  ///< Those without weights, then the others; the worst one of each first.
  std::unique_ptr<const PackedGraph> graph;
  std::uint32_t graphs_alone = 0;  ///< How many of the versions have no weights.
  std::uint32_t named : 31 = 0;    ///< By how many postings; one more while it has its graph.
  std::uint32_t removed : 1 = 0;   ///< Has no version and no graph any more; its number stays until nothing names it.

  /// With weights or without, the worst one first.
  std::span<const std::uint32_t> versions_with(bool weights) const {
    const std::span<const std::uint32_t> all(versions);
    return weights ? all.subspan(graphs_alone) : all.first(graphs_alone);
  }
};

/// The groups that have a slot, and how many slots it stands for. Most are those of a group or two, which stand here;
/// the others have a block: how many, room for how many, how many of them were removed, then the groups.
struct Posting {
  static constexpr std::uint32_t kHere = 2;
  static constexpr std::uint32_t kBlockHead = 3;

  SlotId slot;
  union {
    std::array<std::uint32_t, kHere> here = {kNone, kNone};
    std::uint32_t* block;
  };
  std::uint32_t slots : 31 = 1;  ///< How many are in its run.
  std::uint32_t has_block : 1 = 0;
  std::uint32_t followers = ~0u;  ///< mark_of_follower() all that follow the slot; all while these are not known.

  static std::uint32_t mark_of_follower(const SlotId& follower) { return 1u << (second_half(follower) >> 59); }
  bool may_follow(const SlotId& other) const { return (followers & mark_of_follower(other)) != 0; }

  /// The oldest first.
  std::span<const std::uint32_t> groups() const {
    if (has_block) return {block + kBlockHead, block[0]};
    return std::span(here).first((here[0] != kNone) + (here[1] != kNone));
  }
  std::size_t block_bytes() const { return has_block ? sizeof(std::uint32_t) * (kBlockHead + block[1]) : 0; }

  Posting() = default;
  ~Posting() {
    if (has_block) delete[] block;
  }
  Posting(const Posting&) = delete;
  Posting& operator=(const Posting&) = delete;
};
static_assert(sizeof(Posting) == 32);

/// Calls act(group) for each, the latest first: a search gets better with time, so they are likelier to be answers.
/// `act` comes as a value, so that what it captured stays in registers: long searches are in this loop.
template <typename Act>
void for_each_group(const Posting& posting, Act act) {
  const std::span<const std::uint32_t> groups = posting.groups();
  for (std::size_t at = groups.size(); at-- > 0;) act(groups[at]);
}

struct ModelName {
  std::unique_ptr<const char[]> characters;
  std::uint32_t size = 0;
  std::uint32_t versions = 0;

  std::string_view text() const { return {characters.get(), size}; }
};

struct TagSet {
  std::vector<Digest> digests;  ///< Ascending.
  std::uint32_t versions = 0;
};

/// The common parts of the versions of a process.
struct Life {
  RunId run;
  std::uint64_t incarnation = 0;
};

/// A version that is, or was, or is only known as an ancestor. Lines stay when versions go.
struct Kin {
  std::uint64_t sequence = 0;
  std::uint32_t life = kNone;
  std::uint32_t ancestor = kNone;
  std::uint32_t version = kNone;  ///< kNone: it is not in the index.
};

/// One bit of 64 (Bloom, "Space/time trade-offs", 1970): a group that lacks it has no such slot, which is known without
/// waiting for the memory of its graph.
inline std::uint64_t mark_of(const SlotId& slot) { return std::uint64_t{1} << (second_half(slot) & 63); }

/// A quality as a number that sorts as qualities do: none, which is NaN, is lowest.
inline double bound_of(double quality) {
  if (std::isnan(quality)) return -std::numeric_limits<double>::infinity();
  return std::max(quality, std::numeric_limits<double>::lowest());
}

/// The most that versions of a group have, close together for a pass over many groups.
struct GroupBound {
  double quality = bound_of(kNoQuality);  ///< As bound_of() has it.
  std::uint64_t commit = 0;
  std::uint64_t marks = 0;  ///< mark_of() all of its slots.
};

/// The marks of 64 groups the other way round: for each mark, which of them have it. A search that must look at most of
/// the groups weighs 64 of them at a time (repo/match/scan.h).
struct MarkBlock {
  static constexpr std::uint32_t kGroups = 64;
  std::array<std::uint64_t, 64> groups_with = {};  ///< By mark: a bit for each group.

  void set(std::uint32_t group, std::uint64_t marks) {
    const std::uint64_t bit = std::uint64_t{1} << (group % kGroups);
    for (std::size_t mark = 0; mark < groups_with.size(); ++mark) {
      groups_with[mark] = (marks >> mark & 1) != 0 ? groups_with[mark] | bit : groups_with[mark] & ~bit;
    }
  }
};

struct Shelf {
  Numbered<Version> versions;
  Numbered<Group> groups;
  Numbered<GroupBound> bounds;      ///< Numbered as groups are.
  Numbered<MarkBlock> mark_blocks;  ///< Group g is in block g / 64.
  Numbered<Posting> postings;
  Numbered<ModelName> models;
  Numbered<TagSet> tag_sets;
  Numbered<Life> lives;
  Numbered<Kin> kin;
  CellTable slots;       ///< Numbers of postings; with the flag, of groups that have it alone.
  CellTable kin_by_id;   ///< Numbers of kin.
  std::uint64_t as_of = 0;

  VersionId id_of(std::uint32_t number) const {
    const Kin& one = kin[number];
    return {.run = lives[one.life].run, .incarnation = lives[one.life].incarnation, .sequence = one.sequence};
  }
};

/// The order of answers of the same weight; never equal for different versions.
bool comes_before(const Shelf& shelf, const Version& left, const Version& right);

std::uint64_t hash_of(const VersionId& id);

/// The slot's cell, when it is in the table.
inline std::optional<CellTable::Found> find_slot(const Shelf& shelf, const SlotId& slot) {
  return shelf.slots.find(first_half(slot), [&](Cell cell) {
    return cell.flag ? shelf.groups[cell.number].graph->find(slot).has_value()
                     : same(shelf.postings[cell.number].slot, slot);
  });
}

/// The graph of a group that has all of the posting's run. Not all of its groups were removed: it would be gone.
inline const PackedGraph& graph_with_run(const Shelf& shelf, const Posting& posting) {
  const auto groups = posting.groups();
  const auto has_graph = [&](std::uint32_t number) { return shelf.groups[number].removed == 0; };
  const auto group = std::ranges::find_if(groups, has_graph);
  FRESHET_CHECK(group != groups.end());
  return *shelf.groups[*group].graph;
}

/// A vertex's input, when it has that one alone; else kNone.
inline std::uint32_t only_input(std::span<const std::uint32_t> inputs) {
  if (inputs.empty()) return kNone;
  for (const std::uint32_t input : inputs) {
    if (input != inputs.front()) return kNone;
  }
  return inputs.front();
}

inline std::optional<std::uint32_t> find_kin(const Shelf& shelf, const VersionId& id) {
  const auto found = shelf.kin_by_id.find(hash_of(id), [&](Cell cell) { return shelf.id_of(cell.number) == id; });
  if (!found) return std::nullopt;
  return found->cell.number;
}

}  // namespace freshet::detail
