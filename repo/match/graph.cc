// SPDX-License-Identifier: Apache-2.0
#include "repo/match/graph.h"

#include <unordered_set>
#include <utility>

#include "core/base/format.h"

namespace freshet {
namespace {

tl::unexpected<Error> refuse_graph(std::string message) {
  return fail(Code::invalid_argument, "match graph: " + std::move(message));
}

Status check_counts(const MatchGraph::Parts& parts) {
  if (parts.vertices.size() > kLayersMax) {
    return refuse_graph(format("{} vertices, over the limit of {}", parts.vertices.size(), kLayersMax));
  }
  if (parts.input_starts.size() != parts.vertices.size() + 1) {
    return refuse_graph(
        format("{} places of inputs for {} vertices", parts.input_starts.size(), parts.vertices.size()));
  }
  if (parts.input_starts.front() != 0 || parts.input_starts.back() != parts.inputs.size()) {
    return refuse_graph(format("the vertices' inputs do not end where the list of {} does", parts.inputs.size()));
  }
  return {};
}

// The places grow and end at the list's end, so no later check can read beyond it.
Status check_places(const MatchGraph::Parts& parts) {
  for (std::size_t vertex = 0; vertex < parts.vertices.size(); ++vertex) {
    if (parts.input_starts[vertex] > parts.input_starts[vertex + 1]) {
      return refuse_graph(format("vertex {}: its inputs end before they begin", vertex));
    }
  }
  return {};
}

Status check_vertex(const MatchGraph::Parts& parts, std::size_t index) {
  const MatchGraph::Vertex& vertex = parts.vertices[index];
  const std::uint32_t begin = parts.input_starts[index];
  const std::uint32_t end = parts.input_starts[index + 1];
  if (end - begin > kLayerInputsMax) {
    return refuse_graph(format("vertex {}: {} inputs, over the limit of {}", index, end - begin, kLayerInputsMax));
  }
  if (vertex.is_input && (begin != end || vertex.parametric)) {
    return refuse_graph(format("vertex {}: an input placeholder has neither inputs nor tensors", index));
  }
  if (!vertex.parametric && vertex.bytes != 0) {
    return refuse_graph(format("vertex {}: {} bytes, but no tensors", index, vertex.bytes));
  }
  for (std::uint32_t at = begin; at < end; ++at) {
    if (parts.inputs[at] >= parts.vertices.size()) {
      return refuse_graph(format("vertex {}: its input {} does not exist", index, parts.inputs[at]));
    }
    if (parts.inputs[at] >= index) {
      return refuse_graph(
          format("vertex {}: an input does not come from an earlier vertex: a cycle, or not in order", index));
    }
  }
  return {};
}

}  // namespace

MatchGraph::MatchGraph(Parts parts) : parts_(std::move(parts)) {
  for (const Vertex& vertex : parts_.vertices) whole_ += weight_of(vertex);
}

MatchGraph::Parts MatchGraph::parts_of(std::span<const Layer> layers, std::span<const TensorSpec> tensors,
                                       std::span<const SlotId> slots) {
  Parts parts;
  parts.vertices.reserve(layers.size());
  parts.input_starts.reserve(layers.size() + 1);
  parts.input_starts.push_back(0);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const Layer& layer = layers[i];
    Vertex vertex{.slot = slots[i], .is_input = freshet::is_input(layer), .parametric = !layer.tensors.empty()};
    for (const LayerTensor& tensor : layer.tensors) vertex.bytes += tensors[tensor.tensor].bytes();
    // A placeholder that somebody gave tensors is a placeholder still.
    if (vertex.is_input) vertex.parametric = false;
    if (!vertex.parametric) vertex.bytes = 0;
    parts.vertices.push_back(vertex);
    for (const LayerInput& input : layer.inputs) parts.inputs.push_back(input.layer);
    parts.input_starts.push_back(static_cast<std::uint32_t>(parts.inputs.size()));
  }
  return parts;
}

std::shared_ptr<const MatchGraph> MatchGraph::of(const Architecture& architecture) {
  return std::shared_ptr<const MatchGraph>(
      new MatchGraph(parts_of(architecture.layers(), architecture.tensors(), architecture.slots())));
}

Result<std::shared_ptr<const MatchGraph>> MatchGraph::of(const Architecture::Parts& candidate, ConfigHashes& known) {
  if (candidate.layers.size() > kLayersMax) {
    return fail(Code::invalid_argument, format("{} layers, over the limit of {}", candidate.layers.size(), kLayersMax));
  }
  for (const TensorSpec& spec : candidate.tensors) FRESHET_TRY(spec.check());
  FRESHET_ASSIGN(const std::vector<SlotId> slots, compute_slots(candidate.layers, candidate.tensors, known));
  return build(parts_of(candidate.layers, candidate.tensors, slots));
}

Result<std::shared_ptr<const MatchGraph>> MatchGraph::build(Parts parts) {
  FRESHET_TRY(check_counts(parts));
  FRESHET_TRY(check_places(parts));
  std::unordered_set<SlotId> seen;
  seen.reserve(parts.vertices.size());
  std::uint64_t bytes = 0;
  for (std::size_t vertex = 0; vertex < parts.vertices.size(); ++vertex) {
    FRESHET_TRY(check_vertex(parts, vertex));
    if (!seen.insert(parts.vertices[vertex].slot).second) {
      return refuse_graph(format("vertex {}: slot {} comes twice", vertex, to_hex(parts.vertices[vertex].slot)));
    }
    if (__builtin_add_overflow(bytes, parts.vertices[vertex].bytes, &bytes) || (bytes >> 63) != 0) {
      return refuse_graph(format("vertex {}: the graph's size overflows", vertex));
    }
  }
  return std::shared_ptr<const MatchGraph>(new MatchGraph(std::move(parts)));
}

}  // namespace freshet
