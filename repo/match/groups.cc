// SPDX-License-Identifier: Apache-2.0
/// Architectures in the index: which slots are whose.

#include <algorithm>

#include "repo/match/writer.h"

namespace freshet::detail {

std::uint32_t IndexWriter::group_of(const MatchGraph& graph) {
  auto packed = PackedGraph::of(graph);
  const std::uint64_t hash = packed->hash();
  const auto known =
      groups_.find(hash, [&](Cell group) { return shelf_.groups[group.number].graph->same_slots(*packed); });
  if (known) return known->cell.number;
  const std::uint32_t index = shelf_.groups.take();
  if (index == shelf_.bounds.size()) shelf_.bounds.take();
  GroupBound& bound = shelf_.bounds[index];
  bound = {};
  for (const SlotId& slot : packed->slots()) bound.marks |= mark_of(slot);
  if (shelf_.mark_blocks.size() <= index / MarkBlock::kGroups) shelf_.mark_blocks.take();
  shelf_.mark_blocks[index / MarkBlock::kGroups].set(index, bound.marks);
  shelf_.groups[index].graph = std::move(packed);
  shelf_.groups[index].named = 1;
  groups_.insert(hash, {.number = index});
  add_slots(index, graph);
  return index;
}

std::uint32_t IndexWriter::new_posting(const SlotId& slot, std::uint32_t group) {
  const std::uint32_t index = shelf_.postings.take();
  shelf_.postings[index].slot = slot;
  append(shelf_.postings[index], group);
  return index;
}

std::uint32_t IndexWriter::copy_posting(std::uint32_t like) {
  const Posting& before = shelf_.postings[like];
  const std::vector<std::uint32_t> groups(before.groups().begin(), before.groups().end());
  for (const std::uint32_t group : groups) ++shelf_.groups[group].named;
  const std::uint32_t index = shelf_.postings.take();
  set_groups(shelf_.postings[index], groups, groups.size(), before.has_block ? before.block[2] : 0);
  return index;
}

void IndexWriter::append(Posting& posting, std::uint32_t group) {
  ++shelf_.groups[group].named;
  const std::size_t count = posting.groups().size();
  if (posting.has_block && count < posting.block[1]) {
    posting.block[Posting::kBlockHead + posting.block[0]++] = group;
    return;
  }
  std::vector<std::uint32_t> groups(posting.groups().begin(), posting.groups().end());
  groups.push_back(group);
  set_groups(posting, groups, count + count / 4 + 1, posting.has_block ? posting.block[2] : 0);
}

void IndexWriter::set_groups(Posting& posting, const std::vector<std::uint32_t>& groups, std::size_t room,
                             std::uint32_t dead) {
  if (posting.has_block) delete[] posting.block;
  posting.here = {kNone, kNone};
  posting.has_block = groups.size() > Posting::kHere;
  std::uint32_t* first = posting.here.data();
  if (posting.has_block) {
    posting.block = new std::uint32_t[Posting::kBlockHead + room];
    posting.block[0] = static_cast<std::uint32_t>(groups.size());
    posting.block[1] = static_cast<std::uint32_t>(room);
    posting.block[2] = dead;
    first = posting.block + Posting::kBlockHead;
  }
  std::ranges::copy(groups, first);
}

void IndexWriter::remove_group(std::uint32_t index) {
  Group& group = shelf_.groups[index];
  groups_.erase(groups_.find(group.graph->hash(), [&](Cell cell) { return cell.number == index; })->at);
  group.removed = true;
  for (const SlotId& slot : group.graph->slots()) remove_slot(index, slot);
  group.graph.reset();
  leave_group(index);
}

void IndexWriter::leave_group(std::uint32_t index) {
  if (--shelf_.groups[index].named == 0) shelf_.groups.give_back(index);
}

void IndexWriter::remove_slot(std::uint32_t group, const SlotId& slot) {
  const auto found = find_slot(shelf_, slot);
  if (!found) return;
  if (found->cell.flag) {
    if (found->cell.number == group) shelf_.slots.erase(found->at);
    return;
  }
  Posting& posting = shelf_.postings[found->cell.number];
  // A quarter of dead ones costs searches little, and so many removals pay for one pass over the posting.
  if (posting.has_block && ++posting.block[2] * 4 < posting.block[0]) return;
  drop_removed(posting);
  if (!posting.groups().empty()) return;
  shelf_.slots.erase(found->at);
  shelf_.postings.give_back(found->cell.number);
}

void IndexWriter::drop_removed(Posting& posting) {
  std::vector<std::uint32_t> kept;
  for (const std::uint32_t group : posting.groups()) {
    if (shelf_.groups[group].removed) {
      leave_group(group);
    } else {
      kept.push_back(group);
    }
  }
  set_groups(posting, kept, kept.size(), 0);
}

}  // namespace freshet::detail
