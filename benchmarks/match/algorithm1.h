// SPDX-License-Identifier: Apache-2.0
#pragma once

/// EvoStore's Algorithm 1 (section 4.2) over a catalog: from the roots on, a layer is in the prefix once as many edges
/// led to it in both graphs as it has inputs in either. As a provider of EvoStore would run it, with all that can be
/// done beforehand done: layers labelled with numbers instead of ids, edges in rows, one flat hash map from label to
/// row for each model. Input placeholders are roots, not part of the prefix, and must be in both graphs.

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "repo/match/graph.h"

namespace freshet::benchmarks {

/// Fill it by one thread; then any thread may ask.
class Algorithm1 {
 public:
  void add(const MatchGraph& graph);

  struct Best {
    std::size_t model = 0;
    std::size_t layers = 0;
  };
  /// The first model with the longest prefix.
  Best best(const MatchGraph& query) const;

 private:
  using Label = std::uint32_t;
  static constexpr Label kNoLabel = UINT32_MAX;

  struct Layer {
    Label label = kNoLabel;
    std::uint32_t in_degree = 0;  ///< Different inputs.
    std::uint32_t edges_begin = 0;
    std::uint32_t edges_end = 0;
    bool input = false;
  };
  struct Graph {
    std::vector<Layer> layers;
    std::vector<std::uint32_t> edges;   ///< Successors, as rows of `layers`.
    std::vector<std::uint32_t> places;  ///< Open addressing: row + 1 by label; its size is a power of two.

    const Layer* find(Label label) const;
  };

  Graph prepare(const MatchGraph& graph, const std::vector<Label>& labels) const;
  static std::size_t prefix(const Graph& query, const Graph& ancestor, std::vector<std::uint32_t>& visits,
                            std::vector<std::uint32_t>& frontier);

  std::unordered_map<SlotId, Label> labels_;
  std::vector<Graph> models_;
};

}  // namespace freshet::benchmarks
