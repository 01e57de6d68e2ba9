// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The parts of an architecture that a match uses: the slot id of each layer call, the edges between calls, and the
/// weight of each call. Immutable; any thread.
///
/// Two architectures with the same slot ids are the same to a match, even if their layers have other names, or their
/// tensors are cut into other slices.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/model/graph.h"
#include "core/model/slot_id.h"

namespace freshet {

/// The size of the prefix that two architectures share, in each objective's unit. Input placeholders do not count.
struct LcpSize {
  std::uint64_t layers = 0;
  std::uint64_t parametric_layers = 0;  ///< Layers with their own tensors.
  std::uint64_t bytes = 0;              ///< Of these tensors, as the query cuts them.
  bool operator==(const LcpSize&) const = default;
};

/// Vertices are numbered in declared (topological) order.
class MatchGraph {
 public:
  struct Vertex {
    SlotId slot;
    bool is_input = false;
    bool parametric = false;
    std::uint64_t bytes = 0;  ///< Of its own tensors.
    bool operator==(const Vertex&) const = default;
  };
  struct Parts {
    std::vector<Vertex> vertices;
    std::vector<std::uint32_t> input_starts;  ///< One more than vertices: where each one's inputs begin in `inputs`.
    std::vector<std::uint32_t> inputs;        ///< Vertices, earlier than the one that they feed.
    bool operator==(const Parts&) const = default;
  };

  static std::shared_ptr<const MatchGraph> of(const Architecture& architecture);

  /// The same for a candidate without an Architecture, in a fraction of the time: `known` remembers the configs of
  /// earlier candidates (core/model/slot_id.h). Checks only what a query needs; put() checks everything. The message of
  /// invalid_argument names the layer.
  static Result<std::shared_ptr<const MatchGraph>> of(const Architecture::Parts& candidate, ConfigHashes& known);

  /// For parts from outside. invalid_argument if they are no graph; the message names the vertex. These are faults: an
  /// input that is not earlier (a cycle), lists that do not fit each other, a slot id that comes twice, an input
  /// placeholder with inputs or weights, more than kLayersMax vertices, more than kLayerInputsMax inputs of one vertex,
  /// or more than 2^63 bytes. This call cannot check that the ids belong to the layers: a repository that stores a
  /// version computes the ids from the architecture.
  static Result<std::shared_ptr<const MatchGraph>> build(Parts parts);

  std::size_t size() const { return parts_.vertices.size(); }
  std::span<const Vertex> vertices() const { return parts_.vertices; }
  const Vertex& operator[](std::size_t vertex) const { return parts_.vertices[vertex]; }
  std::span<const std::uint32_t> inputs_of(std::size_t vertex) const {
    return std::span(parts_.inputs)
        .subspan(parts_.input_starts[vertex], parts_.input_starts[vertex + 1] - parts_.input_starts[vertex]);
  }
  const Parts& parts() const { return parts_; }
  /// The sum over all vertices: the longest prefix that a match can have.
  const LcpSize& whole() const { return whole_; }

 private:
  explicit MatchGraph(Parts parts);
  static Parts parts_of(std::span<const Layer> layers, std::span<const TensorSpec> tensors,
                        std::span<const SlotId> slots);

  Parts parts_;
  LcpSize whole_;
};

/// The weight that a vertex adds to a prefix.
inline LcpSize weight_of(const MatchGraph::Vertex& vertex) {
  if (vertex.is_input) return {};
  return {.layers = 1, .parametric_layers = vertex.parametric ? 1u : 0u, .bytes = vertex.bytes};
}
inline LcpSize& operator+=(LcpSize& sum, const LcpSize& part) {
  sum.layers += part.layers;
  sum.parametric_layers += part.parametric_layers;
  sum.bytes += part.bytes;
  return sum;
}

}  // namespace freshet
