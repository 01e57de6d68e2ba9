// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Answers one query from the index. Exact; the order of work is chosen so that it usually touches a few
/// groups, whatever the number of versions, and never does much more than counting would.

#include <cstdint>
#include <memory_resource>
#include <span>
#include <vector>

#include "repo/match/query.h"
#include "repo/match/scan.h"
#include "repo/match/shelf.h"
#include "repo/match/structure_index.h"

namespace freshet::detail {

/// The best rows so far, at most as many as were asked for.
class TopRows {
 public:
  struct Row {
    std::uint64_t weight = 0;
    std::uint32_t version = 0;
  };
  TopRows(const Shelf& shelf, std::uint32_t most, std::pmr::memory_resource* memory)
      : shelf_(shelf), most_(most), heap_(memory) {}

  bool full() const { return heap_.size() == most_; }
  /// What a row must weigh at least to come in; 1 while there is room, for who shares nothing is no answer.
  std::uint64_t least_weight() const { return full() ? heap_.front().weight : 1; }
  bool admits(std::uint64_t weight, std::uint32_t version) const {
    return weight >= least_weight() && (!full() || better({weight, version}, heap_.front()));
  }
  /// False when no version of a group of this bound is better than the worst row. REQUIRES: full(), and the group
  /// weighs as much as that row.
  bool may_tie(const GroupBound& bound) const {
    if (bound.quality != worst_quality_) return bound.quality > worst_quality_;
    // Where it stands for two qualities, it does not tell.
    if (bound.quality == std::numeric_limits<double>::lowest()) return true;
    return bound.commit >= worst_commit_;
  }
  /// REQUIRES: admits() it.
  void add(std::uint64_t weight, std::uint32_t version);
  void clear() { heap_.clear(); }
  /// Best first. Ends its use.
  std::span<const Row> sorted();

 private:
  bool better(const Row& left, const Row& right) const {
    if (left.weight != right.weight) return left.weight > right.weight;
    return left.version != right.version &&
           comes_before(shelf_, shelf_.versions[left.version], shelf_.versions[right.version]);
  }

  const Shelf& shelf_;
  const std::uint32_t most_;
  std::pmr::vector<Row> heap_;  ///< The worst one first.
  double worst_quality_ = 0;    ///< Of the worst one, when full().
  std::uint64_t worst_commit_ = 0;
};

/// The query's layers by slot, to weigh what a group has of them.
class QuerySlots {
 public:
  QuerySlots(const MatchGraph& graph, std::pmr::memory_resource* memory);
  /// The vertex, or kNone.
  std::uint32_t find(const SlotId& slot) const {
    for (std::size_t at = home(slot);; at = (at + 1) & mask_) {
      const std::uint32_t vertex = cells_[at];
      if (vertex == kNone || same(graph_[vertex].slot, slot)) return vertex;
    }
  }

 private:
  std::size_t home(const SlotId& slot) const { return static_cast<std::size_t>(second_half(slot)) & mask_; }

  const MatchGraph& graph_;
  std::size_t mask_ = 0;
  std::pmr::vector<std::uint32_t> cells_;
};

/// One query. One thread at a time; the index must not change as long as it lives.
class Search {
 public:
  Search(const Shelf& shelf, const MatchQuery& query, const std::optional<VersionId>& excluded,
         std::pmr::memory_resource* memory);

  std::vector<MatchRow> run();

 private:
  /// A layer of the query that is in the table as shared, its posting, and the layers that follow it: who has it has
  /// these.
  struct Shared {
    std::uint32_t vertex = 0;
    std::uint32_t posting = 0;
    std::uint32_t groups = 0;          ///< In the posting.
    std::uint64_t weight = 0;          ///< Of all of them.
    const PackedGraph* run = nullptr;  ///< Who tells what follows; null while nothing was looked for.
  };

  /// A shared layer to look for in a group.
  struct Question {
    std::uint32_t number = 0;  ///< In shared_.
    std::uint32_t vertex = 0;
    float value = 0;
    std::uint64_t mark = 0;
  };

  void look_up();
  bool follows(std::uint32_t vertex, Shared& input) const;
  void weigh_private_groups();
  void search_shared();
  /// Whether it is likely to be quicker to scan the marks of all groups than to weigh so many.
  bool worth_scanning(std::uint32_t groups) const;
  /// From nothing, by the marks of all groups. False when these tell too little; then nothing was done.
  bool scan();
  void weigh_candidates(std::span<const MarkScan::Candidate> candidates);
  void count_shared();
  template <typename Count>
  void count_as();

  // Branch and bound, in search_shared(): what is not ruled out, as bits by number in shared_.
  void close();
  std::uint64_t weight_of_bits(std::span<const std::uint64_t> bits, std::span<const std::uint64_t> also) const;
  std::optional<std::size_t> next_shared(std::uint64_t open_weight) const;
  void process(std::size_t number, std::uint64_t open_weight);
  void choose_questions(std::size_t number, std::uint64_t open_weight);
  /// False when a group's marks show that it has too little.
  bool may_weigh_enough(std::uint32_t index, std::size_t number, std::uint64_t open_weight);
  void begin_unknown(std::size_t number);
  /// The group lacks a layer: what of the unknown is lost with it.
  std::uint64_t without(const Question& question);
  bool too_little(std::uint32_t index, std::uint64_t most) const;
  void weigh_batch(std::span<const std::uint32_t> batch, std::size_t number, std::uint64_t open_weight);
  /// The weight of the open layers that group `number` has; 0 when that is too little for a row. Says nothing of a
  /// group that was weighed before.
  std::uint64_t weigh(std::uint32_t index, const PackedGraph& graph, std::size_t number, std::uint64_t open_weight);
  /// Nobody unseen weighs more than the worst row.
  bool ties_only(std::uint64_t open_weight) const { return rows_.full() && open_weight == rows_.least_weight(); }

  std::uint64_t weight_of_group(const PackedGraph& graph) const;
  /// Adds the group's versions that are answers, if it weighs so much.
  void consider(const Group& group, std::uint64_t weight);
  /// Whether any of its versions could be a row with this weight.
  bool might_hold(std::uint32_t group, std::uint64_t weight) const;
  bool is_answer(const Version& version) const;
  MatchRow row_of(const TopRows::Row& row) const;

  const Shelf& shelf_;
  const MatchQuery& query_;
  const MatchGraph& graph_;
  std::pmr::memory_resource* const memory_;

  std::pmr::vector<Digest> tags_;
  std::pmr::vector<std::uint32_t> excluded_;  ///< Numbers of kin, ascending.
  TopRows rows_;
  QuerySlots slots_;
  std::pmr::vector<std::uint64_t> weights_;         ///< Of each vertex, in the objective.
  std::pmr::vector<std::uint32_t> shared_of_;       ///< By vertex: which of shared_ it is or follows, or kNone.
  std::pmr::vector<Shared> shared_;                 ///< Closed under ancestors, in the query's order.
  std::pmr::vector<std::uint32_t> private_groups_;  ///< Ascending.

  static constexpr std::size_t kBatch = 32;
  std::size_t words_ = 0;                  ///< Of a set of shared layers.
  std::pmr::vector<std::uint64_t> above_;  ///< For each shared layer, itself and those that need it.
  std::pmr::vector<std::uint64_t> below_;  ///< For each, itself and those that it needs.
  std::pmr::vector<std::uint64_t> open_;   ///< Those that are not ruled out.
  /// For each bit, the layers whose weight has this bit; none where there are too many.
  std::pmr::vector<std::uint64_t> weight_planes_;
  std::size_t planes_ = 0;
  std::pmr::vector<std::uint64_t> counted_;  ///< Those that weigh something.

  // For the posting at hand.
  std::pmr::vector<Question> asked_;           ///< What to look for in a group, in this order.
  std::pmr::vector<std::uint64_t> unknown_;    ///< weigh()'s: of the open layers that count.
  std::pmr::vector<std::uint32_t> processed_;  ///< Vertices of which all groups were weighed.
};

}  // namespace freshet::detail
