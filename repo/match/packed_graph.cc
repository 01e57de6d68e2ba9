#include "repo/match/packed_graph.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace freshet::detail {

std::uint64_t low_half(const SlotId& slot) {
  std::uint64_t half = 0;
  std::memcpy(&half, slot.bytes.data(), sizeof half);
  return half;
}

std::uint64_t high_half(const SlotId& slot) {
  std::uint64_t half = 0;
  std::memcpy(&half, slot.bytes.data() + sizeof half, sizeof half);
  return half;
}

PackedGraph::PackedGraph(const MatchGraph& graph) {
  const auto vertices = graph.vertices();
  std::vector<std::uint32_t> order(vertices.size());
  std::iota(order.begin(), order.end(), 0u);
  std::ranges::sort(order, {}, [&](std::uint32_t vertex) { return vertices[vertex].slot; });
  std::vector<std::uint32_t> place(vertices.size());
  for (std::uint32_t i = 0; i < order.size(); ++i) place[order[i]] = i;

  slots_.reserve(vertices.size());
  input_starts_.reserve(vertices.size() + 1);
  inputs_.reserve(graph.parts().inputs.size());
  input_starts_.push_back(0);
  for (const std::uint32_t vertex : order) {
    slots_.push_back(vertices[vertex].slot);
    for (const std::uint32_t input : graph.inputs_of(vertex)) inputs_.push_back(place[input]);
    input_starts_.push_back(static_cast<std::uint32_t>(inputs_.size()));
    hash_ = (hash_ ^ low_half(vertices[vertex].slot)) * 0x9E3779B97F4A7C15ULL;
    hash_ ^= hash_ >> 32;
  }
}

// Slots are spread evenly, being hashes: their value tells about where they stand.
std::size_t PackedGraph::guess(const SlotId& slot) const {
  std::uint32_t first = 0;
  for (std::size_t i = 0; i < sizeof first; ++i) first = first << 8 | slot.bytes[i];
  return static_cast<std::size_t>((static_cast<std::uint64_t>(first) * slots_.size()) >> 32);
}

std::optional<std::uint32_t> PackedGraph::find(const SlotId& slot) const {
  constexpr std::size_t kStepsMax = 8;
  if (slots_.empty()) return std::nullopt;
  const auto less = [](const SlotId& left, const SlotId& right) {
    return std::memcmp(left.bytes.data(), right.bytes.data(), left.bytes.size()) < 0;
  };
  std::size_t at = guess(slot);
  std::size_t steps = 0;
  while (at > 0 && less(slot, slots_[at]) && ++steps < kStepsMax) --at;
  while (at + 1 < slots_.size() && less(slots_[at], slot) && ++steps < kStepsMax) ++at;
  if (steps >= kStepsMax) {
    at = static_cast<std::size_t>(std::lower_bound(slots_.begin(), slots_.end(), slot, less) - slots_.begin());
  }
  if (at == slots_.size() || slots_[at] != slot) return std::nullopt;
  return static_cast<std::uint32_t>(at);
}

std::size_t PackedGraph::memory_bytes() const {
  return sizeof(PackedGraph) + slots_.capacity() * sizeof(SlotId) +
         (input_starts_.capacity() + inputs_.capacity()) * sizeof(std::uint32_t);
}

}  // namespace freshet::detail
