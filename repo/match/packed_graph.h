#pragma once

/// A stored architecture in little memory: its slot ids in ascending order, and which feed which. Immutable; any
/// thread.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "repo/match/graph.h"

namespace freshet::detail {

class PackedGraph {
 public:
  explicit PackedGraph(const MatchGraph& graph);

  std::span<const SlotId> slots() const { return slots_; }
  /// Vertices are numbered in the order of their slots.
  std::span<const std::uint32_t> inputs_of(std::uint32_t vertex) const {
    return std::span(inputs_).subspan(input_starts_[vertex], input_starts_[vertex + 1] - input_starts_[vertex]);
  }
  std::optional<std::uint32_t> find(const SlotId& slot) const;
  /// Of where find() will look, or of all slots.
  void prefetch(const SlotId& slot) const { __builtin_prefetch(slots_.data() + guess(slot)); }
  void prefetch() const {
    constexpr std::size_t kSlotsInLine = 4;
    constexpr std::size_t kLinesMax = 16;
    for (std::size_t at = 0; at < std::min(slots_.size(), kSlotsInLine * kLinesMax); at += kSlotsInLine) {
      __builtin_prefetch(slots_.data() + at);
    }
  }
  /// The same slots: the same architecture, as far as matching goes.
  bool same_slots(const PackedGraph& other) const { return slots_ == other.slots_; }
  /// Of the set of slots.
  std::uint64_t hash() const { return hash_; }
  std::size_t memory_bytes() const;

 private:
  std::size_t guess(const SlotId& slot) const;

  std::vector<SlotId> slots_;
  std::vector<std::uint32_t> input_starts_;
  std::vector<std::uint32_t> inputs_;
  std::uint64_t hash_ = 0;
};

/// A slot is a cryptographic hash, so parts of it serve as hashes of it.
std::uint64_t low_half(const SlotId& slot);
std::uint64_t high_half(const SlotId& slot);

}  // namespace freshet::detail
