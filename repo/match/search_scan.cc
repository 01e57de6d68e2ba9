// SPDX-License-Identifier: Apache-2.0
/// A search among groups of which many have most of the query's layers.

#include <algorithm>
#include <bit>

#include "repo/match/search.h"

namespace freshet::detail {
namespace {

// What the steps cost, in nanoseconds: asking a group's marks; scanning them, for each block of groups and for each
// layer in it.
constexpr double kMarkGroup = 4.0;
constexpr double kScanBlock = 8.0;
constexpr double kScanPart = 1.5;
/// Marks that leave more groups than one in this many tell too little.
constexpr std::size_t kScanFewerThan = 64;

}  // namespace

bool Search::worth_scanning(std::uint32_t groups) const {
  const double blocks = shelf_.groups.size() / 64.0;
  return kMarkGroup * groups > blocks * (kScanBlock + kScanPart * static_cast<double>(shared_.size()));
}

// Groups are taken from those that may weigh most on, until nobody who is left can be a row.
bool Search::scan() {
  std::uint64_t all = 0;
  for (const Shared& shared : shared_) all += shared.weight;
  if (std::bit_width(all) >= MarkScan::kBitsMax) return false;
  MarkScan marks(shelf_, shelf_.groups.size(), memory_);
  for (const Shared& shared : shared_) marks.add(mark_of(graph_[shared.vertex].slot), shared.weight);
  std::pmr::vector<MarkScan::Candidate> candidates(memory_);
  const std::size_t limit = shelf_.groups.size() / kScanFewerThan;
  std::uint64_t least = all - std::min(all - 1, 1 + all / 16);
  if (!marks.find(least, all, limit, candidates)) return false;
  // What was weighed until now is weighed again.
  rows_.clear();
  weigh_private_groups();
  weigh_candidates(candidates);
  for (std::uint64_t step = 2; least > 1 && least > rows_.least_weight(); step *= 2) {
    const std::uint64_t most = least - 1;
    least = std::max<std::uint64_t>(rows_.least_weight(), most - std::min(most - 1, step));
    if (!marks.find(least, most, limit, candidates)) {
      count_shared();
      return true;
    }
    weigh_candidates(candidates);
  }
  return true;
}

void Search::weigh_candidates(std::span<const MarkScan::Candidate> candidates) {
  for (std::size_t begin = 0; begin < candidates.size(); begin += kBatch) {
    const auto batch = candidates.subspan(begin, std::min(kBatch, candidates.size() - begin));
    // They lie anywhere in memory, so they are asked for all at once.
    for (const auto& candidate : batch) __builtin_prefetch(&shelf_.groups[candidate.group]);
    for (const auto& candidate : batch) __builtin_prefetch(shelf_.groups[candidate.group].graph.get());
    for (const auto& candidate : batch) {
      if (!might_hold(candidate.group, candidate.weight)) continue;
      if (std::ranges::binary_search(private_groups_, candidate.group)) continue;
      const Group& group = shelf_.groups[candidate.group];
      const PackedGraph* const graph = group.graph.get();
      if (graph != nullptr) consider(group, weight_of_group(*graph));
    }
  }
}

}  // namespace freshet::detail
