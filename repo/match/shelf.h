#pragma once

/// What the index is made of. The writer adds to it and takes from it while readers look; repo/match/epochs.h says when
/// something may go for good.
///
/// Versions of the same slots are a **group**: an architecture is indexed once, however many versions have it. A
/// **slot** is in the table in one of two ways:
///   shared:   two or more groups had it. Its posting lists the groups that have it.
///   private:  one group alone has it, and every input of it is shared. Slots further down are that group's alone as
///             well, and are not in the table.
/// So a slot that is not in the table is in no group, or below a private one. What keeps this true for readers: when a
/// private slot becomes shared, those behind it enter the table before it changes.
///
/// A reader that began in epoch e sees the versions that were born by e and died after it, whatever else it comes
/// across.

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/digest.h"
#include "core/ids.h"
#include "repo/match/cell_table.h"
#include "repo/match/packed_graph.h"
#include "repo/match/stable_array.h"

namespace freshet::detail {

inline constexpr std::uint32_t kNone = ~std::uint32_t{0};
inline constexpr std::uint64_t kForever = ~std::uint64_t{0};

/// A place in a list of versions, best first: the next version on each level (Pugh, "Skip lists", 1990), or kNone. An
/// eighth of the versions on a level are on the one above.
struct Links {
  static constexpr unsigned kLevels = 4;
  std::array<std::atomic<std::uint32_t>, kLevels> next;

  Links() { clear(); }
  void clear() {
    for (auto& level : next) level.store(kNone, std::memory_order_relaxed);
  }
};

/// Constant while in use, but for `died` and the links.
struct Version {
  Links links;
  double quality = 0;  ///< 0 where it has none.
  std::uint64_t commit = 0;
  std::uint64_t number = 0;
  std::uint64_t born = 0;
  std::atomic<std::uint64_t> died{kForever};
  std::uint32_t model = kNone;
  std::uint32_t kin = kNone;
  std::uint32_t group = kNone;
  std::uint32_t tags = kNone;  ///< kNone: it has none.
  std::uint32_t next_free = kNone;
  bool has_quality = false;
  bool has_weights = true;
};

/// A group's graph, which it owns. The writer takes it away when nobody can see versions of the group any more; who
/// only comes across the group's number in a posting may still look at it, and loads it once.
class GraphPointer {
 public:
  GraphPointer() = default;
  ~GraphPointer() { delete get(); }
  GraphPointer(const GraphPointer&) = delete;
  GraphPointer& operator=(const GraphPointer&) = delete;

  const PackedGraph* get() const { return graph_.load(std::memory_order_acquire); }
  const PackedGraph* operator->() const { return get(); }
  const PackedGraph& operator*() const { return *get(); }
  /// REQUIRES: there is none.
  void set(std::unique_ptr<const PackedGraph> graph) { graph_.store(graph.release(), std::memory_order_release); }
  /// The caller's from here on, to be deleted when no reader can have loaded it.
  const PackedGraph* take() { return graph_.exchange(nullptr, std::memory_order_acq_rel); }

 private:
  std::atomic<const PackedGraph*> graph_{nullptr};
};

struct Group {
  std::array<Links, 2> lists;  ///< Versions with weights, and without.
  GraphPointer graph;
  std::uint32_t versions = 0;  ///< In the lists.
  std::uint32_t named = 0;     ///< By how many postings; one more while it has its graph.
  std::uint32_t next_free = kNone;
  bool removed = false;  ///< Has no versions any more; its number stays until nothing names it.
};

/// The groups that have a slot, in a block: their number, then theirs. A block only grows, or another takes its place.
struct Posting {
  using Block = std::atomic<std::uint32_t>;

  SlotId slot;
  std::atomic<Block*> block{nullptr};
  std::uint32_t capacity = 0;
  std::uint32_t dead = 0;    ///< Removed groups in it.
  std::array<Block, 3> few;  ///< The first block of most postings.
  std::uint32_t next_free = kNone;

  Posting() = default;
  ~Posting() {
    if (Block* mine = block.load(std::memory_order_relaxed); mine != few.data()) delete[] mine;
  }
};

struct ModelName {
  std::string text;
  std::uint32_t versions = 0;
  std::uint32_t next_free = kNone;
};

struct TagSet {
  std::vector<Digest> digests;  ///< Ascending.
  std::uint32_t versions = 0;
  std::uint32_t next_free = kNone;
};

/// A version that is, or was, or is only known as an ancestor. Lines stay when versions go.
struct Kin {
  VersionId id;
  std::atomic<std::uint32_t> ancestor{kNone};
  std::uint32_t version = kNone;  ///< The writer's.
};

/// What the versions of a group have at most: an upper bound for every reader, close together for whoever goes through
/// many groups. It is lowered only when no reader can see the version that held it up.
struct GroupBound {
  std::atomic<double> quality;  ///< As bound_of() has it.
  std::atomic<std::uint64_t> commit;
  std::uint32_t next_free = kNone;
};

/// A quality as a number that sorts as qualities do: none is lowest.
inline double bound_of(bool has_quality, double quality) {
  if (!has_quality) return -std::numeric_limits<double>::infinity();
  return std::max(quality, std::numeric_limits<double>::lowest());
}

struct Shelf {
  StableArray<Version> versions;
  StableArray<Group> groups;
  StableArray<GroupBound> bounds;  ///< Numbered as groups are.
  StableArray<Posting> postings;
  StableArray<ModelName> models;
  StableArray<TagSet> tag_sets;
  StableArray<Kin> kin;
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
  return table.find(low_half(slot), [&](Cell cell) {
    return cell.flag ? shelf.groups[cell.number].graph->find(slot).has_value()
                     : shelf.postings[cell.number].slot == slot;
  });
}

inline std::optional<std::uint32_t> find_kin(const Shelf& shelf, const CellTable& table, const VersionId& id) {
  const auto found = table.find(hash_of(id), [&](Cell cell) { return shelf.kin[cell.number].id == id; });
  if (!found) return std::nullopt;
  return found->cell.number;
}

}  // namespace freshet::detail
