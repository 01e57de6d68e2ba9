// SPDX-License-Identifier: Apache-2.0
/// Architectures in the index: which slots are whose.

#include <algorithm>

#include "repo/match/writer.h"

namespace freshet::detail {

std::uint32_t IndexWriter::group_of(const MatchGraph& graph) {
  auto packed = PackedGraph::of(graph);
  const auto known = groups_.find(packed->hash(),
                                  [&](std::uint32_t group) { return shelf_.groups[group].graph->same_slots(*packed); });
  if (known) return *known;
  const std::uint32_t index = shelf_.groups.take();
  if (index == shelf_.bounds.in_use()) shelf_.bounds.take();
  Group& group = shelf_.groups[index];
  shelf_.bounds[index].quality.store(bound_of(kNoQuality), std::memory_order_relaxed);
  shelf_.bounds[index].commit.store(0, std::memory_order_relaxed);
  for (auto& best : group.best) best.store(kNone, std::memory_order_relaxed);
  group.towers.fill(kNone);
  group.versions = 0;
  shelf_.bounds[index].marks = 0;
  for (const SlotId& slot : packed->slots()) shelf_.bounds[index].marks |= mark_of(slot);
  while (shelf_.mark_blocks.in_use() <= index / MarkBlock::kGroups) shelf_.mark_blocks.take();
  shelf_.mark_blocks[index / MarkBlock::kGroups].set(index, shelf_.bounds[index].marks);
  graph_bytes_ += packed->memory_bytes();
  group.graph.set(std::move(packed));
  group.named = 1;
  group.removed = false;
  groups_end_ = std::max(groups_end_, index + 1);
  groups_.insert(index);
  add_slots(index, graph);
  return index;
}

std::uint32_t IndexWriter::new_posting(const SlotId& slot, std::uint32_t group) {
  const std::uint32_t index = shelf_.postings.take();
  Posting& posting = shelf_.postings[index];
  posting.slot = slot;
  posting.slots = 1;
  posting.followers.store(Posting::kAnyFollower, std::memory_order_relaxed);
  posting.groups.store(Posting::one(group), std::memory_order_release);
  ++shelf_.groups[group].named;
  return index;
}

std::uint32_t IndexWriter::copy_posting(std::uint32_t like) {
  std::vector<std::uint32_t> groups;
  groups.reserve(groups_in(shelf_.postings[like]));
  find_oldest(shelf_.postings[like], [&](std::uint32_t group) {
    ++shelf_.groups[group].named;
    groups.push_back(group);
    return false;
  });
  const std::uint32_t index = shelf_.postings.take();
  Posting& posting = shelf_.postings[index];
  // What it had when it was last in use is not there any more.
  posting.groups.store(Posting::kNobody, std::memory_order_relaxed);
  set_groups(posting, groups, static_cast<std::uint32_t>(groups.size()), dead_in(shelf_.postings[like]));
  return index;
}

std::uint32_t IndexWriter::dead_in(const Posting& posting) {
  const std::uint64_t groups = posting.groups.load(std::memory_order_relaxed);
  return Posting::is_here(groups) ? 0 : Posting::block_of(groups)[2].load(std::memory_order_relaxed);
}

void IndexWriter::append(std::uint32_t index, std::uint32_t group) {
  Posting& posting = shelf_.postings[index];
  const std::uint64_t before = posting.groups.load(std::memory_order_relaxed);
  const std::uint32_t count = groups_in(posting);
  ++shelf_.groups[group].named;
  if (!Posting::is_here(before)) {
    Posting::Block* block = Posting::block_of(before);
    if (count < block[1].load(std::memory_order_relaxed)) {
      block[Posting::kBlockHead + count].store(group, std::memory_order_relaxed);
      block[0].store(count + 1, std::memory_order_release);
      return;
    }
  }
  std::vector<std::uint32_t> groups;
  groups.reserve(count + 1);
  groups.push_back(group);
  for_each_group(posting, [&](std::uint32_t other) { groups.push_back(other); });
  std::ranges::reverse(groups);
  set_groups(posting, groups, count + count / 4 + 1, dead_in(posting));
}

void IndexWriter::set_groups(Posting& posting, const std::vector<std::uint32_t>& groups, std::uint32_t room,
                             std::uint32_t dead) {
  const std::uint64_t before = posting.groups.load(std::memory_order_relaxed);
  std::uint64_t after = Posting::kNobody;
  if (groups.size() == 1) after = Posting::one(groups[0]);
  if (groups.size() == 2) after = Posting::two(groups[0], groups[1]);
  if (groups.size() > Posting::kHere) {
    auto* block = new Posting::Block[Posting::kBlockHead + room];
    block[0].store(static_cast<std::uint32_t>(groups.size()), std::memory_order_relaxed);
    block[1].store(room, std::memory_order_relaxed);
    block[2].store(dead, std::memory_order_relaxed);
    for (std::size_t i = 0; i < groups.size(); ++i) {
      block[Posting::kBlockHead + i].store(groups[i], std::memory_order_relaxed);
    }
    block_bytes_ += Posting::block_bytes(block);
    after = reinterpret_cast<std::uint64_t>(block);
  }
  posting.groups.store(after, std::memory_order_release);
  if (!Posting::is_here(before)) later([this, before] { delete_block(Posting::block_of(before)); });
}

void IndexWriter::delete_block(Posting::Block* block) {
  block_bytes_ -= Posting::block_bytes(block);
  delete[] block;
}

void IndexWriter::remove_group(std::uint32_t index) {
  Group& group = shelf_.groups[index];
  for (std::uint32_t& tower : group.towers) give_back_tower(tower);
  groups_.erase(index);
  group.graph.leave();
  // Readers that asked it what follows what count with the table as it is.
  later([this, index] { remove_slots(index); });
}

void IndexWriter::remove_slots(std::uint32_t index) {
  Group& group = shelf_.groups[index];
  group.removed = true;
  for (const SlotId& slot : group.graph->slots()) remove_slot(index, slot);
  later([this, index] {
    Group& gone = shelf_.groups[index];
    graph_bytes_ -= gone.graph->memory_bytes();
    later([graph = gone.graph.take()] { delete graph; });
    leave_group(index);
  });
}

void IndexWriter::leave_group(std::uint32_t index) {
  if (--shelf_.groups[index].named != 0) return;
  shelf_.groups.give_back(index);
}

void IndexWriter::remove_slot(std::uint32_t group, const SlotId& slot) {
  const auto found = find_slot(shelf_, *slots_, slot);
  if (!found) return;
  if (found->cell.flag) {
    if (found->cell.number == group) slots_->erase(found->at);
    return;
  }
  Posting& posting = shelf_.postings[found->cell.number];
  const std::uint64_t groups = posting.groups.load(std::memory_order_relaxed);
  if (!Posting::is_here(groups)) {
    // A quarter of dead ones costs readers little, and so many removals pay for one pass over the posting.
    Posting::Block& dead = Posting::block_of(groups)[2];
    dead.store(dead.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    if (dead.load(std::memory_order_relaxed) * 4 < groups_in(posting)) return;
  }
  drop_removed(found->cell.number);
  if (groups_in(posting) != 0) return;
  slots_->erase(found->at);
  later([this, number = found->cell.number] { shelf_.postings.give_back(number); });
}

void IndexWriter::drop_removed(std::uint32_t index) {
  Posting& posting = shelf_.postings[index];
  std::vector<std::uint32_t> kept;
  for_each_group(posting, [&](std::uint32_t group) {
    if (shelf_.groups[group].removed) {
      leave_posting_of(group);
    } else {
      kept.push_back(group);
    }
  });
  std::ranges::reverse(kept);
  set_groups(posting, kept, static_cast<std::uint32_t>(kept.size()), 0);
}

void IndexWriter::leave_posting_of(std::uint32_t index) {
  // Readers may have come across it in the posting.
  later([this, index] { leave_group(index); });
}

}  // namespace freshet::detail
