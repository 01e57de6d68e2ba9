// SPDX-License-Identifier: Apache-2.0
#include "repo/match/packed_graph.h"

#include <new>
#include <numeric>
#include <vector>

namespace freshet::detail {

std::unique_ptr<const PackedGraph> PackedGraph::of(const MatchGraph& graph) {
  const auto vertices = graph.vertices();
  std::vector<std::uint32_t> order(vertices.size());
  std::iota(order.begin(), order.end(), 0u);
  std::ranges::sort(order, {}, [&](std::uint32_t vertex) { return vertices[vertex].slot; });
  const std::size_t bytes = bytes_for(vertices.size(), graph.parts().inputs.size());
  return std::unique_ptr<const PackedGraph>(new (bytes) PackedGraph(graph, order));
}

PackedGraph::PackedGraph(const MatchGraph& graph, std::span<const std::uint32_t> order) : count_(order.size()) {
  std::vector<std::uint32_t> place(order.size());
  for (std::uint32_t i = 0; i < order.size(); ++i) place[order[i]] = i;
  auto* slot = reinterpret_cast<std::byte*>(this + 1);
  auto* start = slot + order.size() * sizeof(SlotId);
  auto* input = start + (order.size() + 1) * sizeof(std::uint32_t);
  std::uint32_t inputs = 0;
  const auto begin_vertex = [&] {
    new (start) std::uint32_t(inputs);
    start += sizeof inputs;
  };
  for (const std::uint32_t vertex : order) {
    new (slot) SlotId(graph[vertex].slot);
    slot += sizeof(SlotId);
    begin_vertex();
    for (const std::uint32_t fed_by : graph.inputs_of(vertex)) {
      new (input) std::uint32_t(place[fed_by]);
      input += sizeof(std::uint32_t);
      ++inputs;
    }
    hash_ = (hash_ ^ first_half(graph[vertex].slot)) * 0x9E3779B97F4A7C15ULL;
    hash_ ^= hash_ >> 32;
  }
  begin_vertex();
}

std::optional<std::uint32_t> PackedGraph::find(const SlotId& slot) const {
  constexpr std::size_t kStepsMax = 8;
  const SlotId* slots = first_slot();
  const std::uint64_t first = first_half(slot);
  const std::uint64_t second = second_half(slot);
  const auto is_before = [&](const SlotId& other) {
    const std::uint64_t theirs = first_half(other);
    return theirs != first ? theirs < first : second_half(other) < second;
  };
  std::size_t at = guess(slot);
  std::size_t steps = 0;
  while (at > 0 && !is_before(slots[at - 1]) && ++steps < kStepsMax) --at;
  while (at < count_ && is_before(slots[at]) && ++steps < kStepsMax) ++at;
  if (steps >= kStepsMax) {
    const SlotId* found = std::partition_point(slots, slots + count_, is_before);
    at = static_cast<std::size_t>(found - slots);
  }
  if (at == count_ || first_half(slots[at]) != first || second_half(slots[at]) != second) return std::nullopt;
  return static_cast<std::uint32_t>(at);
}

}  // namespace freshet::detail
