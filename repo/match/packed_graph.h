// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A stored architecture in little memory: its slot ids in ascending order, and which feed which. Immutable; any
/// thread.

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>

#include "repo/match/graph.h"

namespace freshet::detail {

/// Eight bytes of a slot, in the order of slots. A slot is a cryptographic hash, so they serve as a hash of it.
inline std::uint64_t eight_bytes_of(const SlotId& slot, std::size_t from) {
  std::uint64_t bytes = 0;
  std::memcpy(&bytes, slot.bytes.data() + from, sizeof bytes);
  if constexpr (std::endian::native == std::endian::little) bytes = __builtin_bswap64(bytes);
  return bytes;
}
/// Its lower bits are the hash; the upper ones tell where the slot stands among others.
inline std::uint64_t first_half(const SlotId& slot) { return eight_bytes_of(slot, 0); }
inline std::uint64_t second_half(const SlotId& slot) { return eight_bytes_of(slot, 8); }
/// As ==, without a call.
inline bool same(const SlotId& left, const SlotId& right) {
  return first_half(left) == first_half(right) && second_half(left) == second_half(right);
}

/// One piece of memory: this, then the slots, then where each one's inputs begin, then these. A search for a slot in
/// many graphs waits for memory, so there is nothing between.
class PackedGraph {
 public:
  static std::unique_ptr<const PackedGraph> of(const MatchGraph& graph);
  static void operator delete(void* memory) { ::operator delete(memory); }
  PackedGraph(const PackedGraph&) = delete;
  PackedGraph& operator=(const PackedGraph&) = delete;

  std::span<const SlotId> slots() const { return {first_slot(), count_}; }
  /// Vertices are numbered in the order of their slots.
  std::span<const std::uint32_t> inputs_of(std::uint32_t vertex) const {
    const std::uint32_t* starts = input_starts();
    return {starts + count_ + 1 + starts[vertex], starts[vertex + 1] - starts[vertex]};
  }
  std::optional<std::uint32_t> find(const SlotId& slot) const;
  /// Prefetches the place where find() will look.
  void prefetch(const SlotId& slot) const { __builtin_prefetch(first_slot() + guess(slot)); }
  /// The same slots: the same architecture, as far as matching goes.
  bool same_slots(const PackedGraph& other) const {
    return count_ == other.count_ && std::memcmp(first_slot(), other.first_slot(), count_ * sizeof(SlotId)) == 0;
  }
  /// The digest of the set of slots.
  std::uint64_t hash() const { return hash_; }
  std::size_t memory_bytes() const { return bytes_for(count_, input_starts()[count_]); }

 private:
  PackedGraph(const MatchGraph& graph, std::span<const std::uint32_t> order);
  /// The memory behind it as well.
  static void* operator new(std::size_t, std::size_t bytes) { return ::operator new(bytes); }
  static void operator delete(void* memory, std::size_t) { ::operator delete(memory); }
  static std::size_t bytes_for(std::size_t vertices, std::size_t inputs) {
    return sizeof(PackedGraph) + vertices * sizeof(SlotId) + (vertices + 1 + inputs) * sizeof(std::uint32_t);
  }

  const SlotId* first_slot() const { return reinterpret_cast<const SlotId*>(this + 1); }
  const std::uint32_t* input_starts() const { return reinterpret_cast<const std::uint32_t*>(first_slot() + count_); }
  // Slots are spread evenly, being hashes: their value tells about where they stand.
  std::size_t guess(const SlotId& slot) const {
    return static_cast<std::size_t>(((first_half(slot) >> 32) * count_) >> 32);
  }

  std::uint64_t hash_ = 0;
  std::uint64_t count_ = 0;
};

}  // namespace freshet::detail
