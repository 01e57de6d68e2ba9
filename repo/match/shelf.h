// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What the index is made of. The writer adds to it and takes from it while readers look; repo/match/epochs.h says when
/// something may go for good.
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
/// one, or follows its input; this is so if the oldest group of the input's posting has it. What keeps it true for
/// readers:
///   - When a private slot becomes shared, those behind it that do not follow it enter the table before it changes.
///   - When a group comes that has a part of a run, the rest enters the table, with the groups that there were, before
///     that group can be seen. A reader that does not find it there yet asks a group that came before it began.
///   - When a group goes, it is first marked as leaving, so that nobody asks it any more. What it alone had leaves the
///     table when all readers began after that.
///
/// A reader that began in epoch e sees the versions that were born by e and died after it, whatever else it comes
/// across.

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "core/base/digest.h"
#include "core/model/ids.h"
#include "repo/match/cell_table.h"
#include "repo/match/packed_graph.h"
#include "repo/match/stable_array.h"

namespace freshet::detail {

inline constexpr std::uint32_t kNone = ~std::uint32_t{0};
inline constexpr std::uint64_t kForever = ~std::uint64_t{0};
inline constexpr double kNoQuality = std::numeric_limits<double>::quiet_NaN();

/// The upper levels of a place in a list of versions (Pugh, "Skip lists", 1990): the next one on each, or kNone. An
/// eighth of the versions on a level are on the one above, so few have one. The writer's.
struct Tower {
  static constexpr unsigned kLevels = 3;
  std::array<std::uint32_t, kLevels> next;
  std::uint32_t free_link = kNone;

  void clear() { next.fill(kNone); }
  std::uint32_t& next_free() { return free_link; }
};

/// Constant while in use, but for `died` and the links.
struct Version {
  std::atomic<std::uint32_t> next{kNone};  ///< The next best one of the group.
  std::uint32_t tower = kNone;             ///< The writer's.
  double quality = 0;                      ///< NaN where it has none.
  std::uint64_t commit = 0;
  std::uint64_t number = 0;
  std::uint64_t born = 0;
  std::atomic<std::uint64_t> died{kForever};
  std::uint32_t model = kNone;
  std::uint32_t kin = kNone;
  std::uint32_t group : 31 = 0;
  std::uint32_t has_weights : 1 = 1;
  std::uint32_t tags = kNone;  ///< kNone: it has none.

  bool has_quality() const { return !std::isnan(quality); }
  std::uint32_t& next_free() { return tower; }
};
static_assert(sizeof(Version) == 64);

/// A group's graph, which it owns. The writer marks it and then takes it away when nobody can see versions of the group
/// any more; who only comes across the group's number in a posting may still look at it, and loads it once.
class GraphPointer {
 public:
  GraphPointer() = default;
  ~GraphPointer() { delete get(); }
  GraphPointer(const GraphPointer&) = delete;
  GraphPointer& operator=(const GraphPointer&) = delete;

  const PackedGraph* get() const {
    return reinterpret_cast<const PackedGraph*>(graph_.load(std::memory_order_acquire) & ~kLeaving);
  }
  /// None when the group is leaving.
  const PackedGraph* get_lasting() const {
    const std::uintptr_t graph = graph_.load(std::memory_order_acquire);
    return (graph & kLeaving) != 0 ? nullptr : reinterpret_cast<const PackedGraph*>(graph);
  }
  const PackedGraph* operator->() const { return get(); }
  const PackedGraph& operator*() const { return *get(); }
  /// REQUIRES: there is none.
  void set(std::unique_ptr<const PackedGraph> graph) {
    graph_.store(reinterpret_cast<std::uintptr_t>(graph.release()), std::memory_order_release);
  }
  void leave() { graph_.fetch_or(kLeaving, std::memory_order_acq_rel); }
  /// The caller's from here on, to be deleted when no reader can have loaded it.
  const PackedGraph* take() {
    return reinterpret_cast<const PackedGraph*>(graph_.exchange(0, std::memory_order_acq_rel) & ~kLeaving);
  }

 private:
  static constexpr std::uintptr_t kLeaving = 1;

  std::atomic<std::uintptr_t> graph_{0};
};

struct Group {
  std::array<std::atomic<std::uint32_t>, 2> best{kNone, kNone};  ///< Of the versions with weights, and without.
  std::array<std::uint32_t, 2> towers{kNone, kNone};             ///< Where those lists begin on the upper levels.
  GraphPointer graph;
  std::uint32_t versions = 0;     ///< In the lists.
  std::uint32_t named : 31 = 0;   ///< By how many postings; one more while it has its graph.
  std::uint32_t removed : 1 = 0;  ///< Is being taken out of postings; its number stays until nothing names it.

  std::uint32_t& next_free() { return versions; }
};
static_assert(sizeof(Group) == 32);

/// The groups that have a slot, the oldest first, and how many slots it stands for. Most are those of a group or two,
/// which stand here; the others have a block: how many, room for how many, how many of them were removed, then the
/// groups. A block only grows, or another takes its place.
struct Posting {
  using Block = std::atomic<std::uint32_t>;
  static constexpr std::uint32_t kHere = 2;
  static constexpr std::uint32_t kBlockHead = 3;

  SlotId slot;
  /// The block's address; or, being odd, up to two groups, so that a reader gets both at once.
  std::atomic<std::uint64_t> groups{kNobody};
  /// How many slots are in its run; while it is not in use, the next one that is not. The writer's.
  std::uint32_t slots = 1;
  /// mark_of_follower() all that follow the slot, for any reader; so it may have more.
  std::atomic<std::uint32_t> followers{kAnyFollower};

  static constexpr std::uint32_t kAnyFollower = ~std::uint32_t{0};
  static std::uint32_t mark_of_follower(const SlotId& follower) { return 1u << (second_half(follower) >> 59); }
  bool may_follow(const SlotId& other) const {
    return (followers.load(std::memory_order_acquire) & mark_of_follower(other)) != 0;
  }

  static constexpr std::uint64_t kNobody = 1;
  static std::uint64_t one(std::uint32_t group) { return kNobody | 1u << 1 | std::uint64_t{group} << 4; }
  static std::uint64_t two(std::uint32_t first, std::uint32_t second) {
    return kNobody | 2u << 1 | std::uint64_t{first} << 4 | std::uint64_t{second} << 34;
  }
  static bool is_here(std::uint64_t groups) { return (groups & 1) != 0; }
  static Block* block_of(std::uint64_t groups) { return reinterpret_cast<Block*>(groups); }
  static std::size_t block_bytes(const Block* block) {
    return sizeof(Block) * (kBlockHead + block[1].load(std::memory_order_relaxed));
  }

  std::uint32_t& next_free() { return slots; }

  Posting() = default;
  ~Posting() {
    const std::uint64_t mine = groups.load(std::memory_order_relaxed);
    if (!is_here(mine)) delete[] block_of(mine);
  }
};
static_assert(sizeof(Posting) == 32);

/// Calls act(group) for each, the latest first: a search gets better with time, so they are likelier to be answers.
/// `act` comes as a value, so that what it captured stays in registers: long searches are in this loop.
template <typename Act>
void for_each_group(const Posting& posting, Act act) {
  const std::uint64_t groups = posting.groups.load(std::memory_order_acquire);
  if (Posting::is_here(groups)) {
    constexpr std::uint64_t kGroup = (std::uint64_t{1} << 30) - 1;
    const std::uint64_t count = groups >> 1 & 3;
    if (count == 2) act(static_cast<std::uint32_t>(groups >> 34 & kGroup));
    if (count != 0) act(static_cast<std::uint32_t>(groups >> 4 & kGroup));
    return;
  }
  const Posting::Block* block = Posting::block_of(groups);
  const Posting::Block* first = block + Posting::kBlockHead;
  for (const Posting::Block* at = first + block[0].load(std::memory_order_acquire); at != first;) {
    act((--at)->load(std::memory_order_relaxed));
  }
}

/// The first, from the oldest on, for which `is_it(group)`; or kNone.
template <typename IsIt>
std::uint32_t find_oldest(const Posting& posting, const IsIt& is_it) {
  const std::uint64_t groups = posting.groups.load(std::memory_order_acquire);
  if (Posting::is_here(groups)) {
    constexpr std::uint64_t kGroup = (std::uint64_t{1} << 30) - 1;
    const std::uint64_t count = groups >> 1 & 3;
    const auto first = static_cast<std::uint32_t>(groups >> 4 & kGroup);
    const auto second = static_cast<std::uint32_t>(groups >> 34 & kGroup);
    if (count != 0 && is_it(first)) return first;
    return count == 2 && is_it(second) ? second : kNone;
  }
  const Posting::Block* block = Posting::block_of(groups);
  const Posting::Block* at = block + Posting::kBlockHead;
  for (const Posting::Block* end = at + block[0].load(std::memory_order_acquire); at != end; ++at) {
    const std::uint32_t group = at->load(std::memory_order_relaxed);
    if (is_it(group)) return group;
  }
  return kNone;
}

inline std::uint32_t groups_in(const Posting& posting) {
  const std::uint64_t groups = posting.groups.load(std::memory_order_acquire);
  if (Posting::is_here(groups)) return groups >> 1 & 3;
  return Posting::block_of(groups)[0].load(std::memory_order_acquire);
}

struct ModelName {
  std::unique_ptr<const char[]> characters;
  std::uint32_t size = 0;
  std::uint32_t versions = 0;

  std::string_view text() const { return {characters.get(), size}; }
  std::uint32_t& next_free() { return versions; }
};

struct TagSet {
  std::vector<Digest> digests;  ///< Ascending.
  std::uint32_t versions = 0;

  std::uint32_t& next_free() { return versions; }
};

/// What the versions of a process have in common.
struct Life {
  RunId run;
  std::uint64_t incarnation = 0;
};

/// A version that is, or was, or is only known as an ancestor. Lines stay when versions go.
struct Kin {
  std::uint64_t sequence = 0;
  std::uint32_t life = kNone;
  std::atomic<std::uint32_t> ancestor{kNone};
  std::uint32_t version = kNone;  ///< The writer's.
};

/// One bit of 64 (Bloom, "Space/time trade-offs", 1970): a group that lacks it has no such slot, which is known without
/// waiting for the memory of its graph.
inline std::uint64_t mark_of(const SlotId& slot) { return std::uint64_t{1} << (second_half(slot) & 63); }

/// What the versions of a group have at most: an upper bound for every reader, close together for whoever goes through
/// many groups. It is lowered only when no reader can see the version that held it up.
struct GroupBound {
  std::atomic<double> quality;  ///< As bound_of() has it.
  std::atomic<std::uint64_t> commit;
  std::uint64_t marks = 0;  ///< mark_of() all of its slots: constant while the group has a number.
};

/// The marks of 64 groups the other way round: for each mark, which of them have it. Who must look at most of the
/// groups weighs 64 of them at a time (repo/match/scan.h).
struct MarkBlock {
  static constexpr std::uint32_t kGroups = 64;
  std::array<std::atomic<std::uint64_t>, 64> groups_with;  ///< By mark: a bit for each group.

  MarkBlock() {
    for (auto& groups : groups_with) groups.store(0, std::memory_order_relaxed);
  }
  /// The writer's.
  void set(std::uint32_t group, std::uint64_t marks) {
    const std::uint64_t bit = std::uint64_t{1} << (group % kGroups);
    for (std::size_t mark = 0; mark < groups_with.size(); ++mark) {
      const std::uint64_t before = groups_with[mark].load(std::memory_order_relaxed);
      groups_with[mark].store((marks >> mark & 1) != 0 ? before | bit : before & ~bit, std::memory_order_relaxed);
    }
  }
};

/// A quality as a number that sorts as qualities do: none, which is NaN, is lowest.
inline double bound_of(double quality) {
  if (std::isnan(quality)) return -std::numeric_limits<double>::infinity();
  return std::max(quality, std::numeric_limits<double>::lowest());
}

struct Shelf {
  StableArray<Version> versions;
  StableArray<Tower> towers;
  StableArray<Group> groups;
  StableArray<GroupBound> bounds;      ///< Numbered as groups are.
  StableArray<MarkBlock> mark_blocks;  ///< Group g is in block g / 64.
  StableArray<Posting> postings;
  StableArray<ModelName> models;
  StableArray<TagSet> tag_sets;
  StableArray<Life> lives;
  StableArray<Kin> kin;

  VersionId id_of(std::uint32_t number) const {
    const Kin& one = kin[number];
    return {.run = lives[one.life].run, .incarnation = lives[one.life].incarnation, .sequence = one.sequence};
  }
};

/// What a reader begins with.
struct View {
  std::uint64_t epoch = 0;
  std::uint64_t as_of = 0;
  const CellTable* slots = nullptr;  ///< Numbers of postings; with the flag, of groups that have it alone.
  const CellTable* kin = nullptr;
  std::uint32_t groups = 0;  ///< Greater than every group's number.
  std::size_t lines = 0;     ///< How many kin there are.
};

/// The order of answers of the same weight; never equal for different versions.
bool comes_before(const Shelf& shelf, const Version& left, const Version& right);

std::uint64_t hash_of(const VersionId& id);

/// The slot's cell, when it is in the table.
inline std::optional<CellTable::Found> find_slot(const Shelf& shelf, const CellTable& table, const SlotId& slot) {
  return table.find(first_half(slot), [&](Cell cell) {
    return cell.flag ? shelf.groups[cell.number].graph->find(slot).has_value()
                     : same(shelf.postings[cell.number].slot, slot);
  });
}

/// The graph of a group that has all of the posting's run; null when none of its groups has versions any more.
inline const PackedGraph* graph_with_run(const Shelf& shelf, const Posting& posting) {
  const PackedGraph* graph = nullptr;
  find_oldest(posting, [&](std::uint32_t group) {
    graph = shelf.groups[group].graph.get_lasting();
    return graph != nullptr;
  });
  return graph;
}

/// A vertex's input, when it has that one alone; else kNone.
inline std::uint32_t only_input(std::span<const std::uint32_t> inputs) {
  if (inputs.empty()) return kNone;
  for (const std::uint32_t input : inputs) {
    if (input != inputs.front()) return kNone;
  }
  return inputs.front();
}

inline std::optional<std::uint32_t> find_kin(const Shelf& shelf, const CellTable& table, const VersionId& id) {
  const auto found = table.find(hash_of(id), [&](Cell cell) { return shelf.id_of(cell.number) == id; });
  if (!found) return std::nullopt;
  return found->cell.number;
}

}  // namespace freshet::detail
