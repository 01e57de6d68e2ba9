// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/match/algorithm1.h"

#include <algorithm>
#include <bit>

namespace freshet::benchmarks {

const Algorithm1::Layer* Algorithm1::Graph::find(Label label) const {
  const std::size_t mask = places.size() - 1;
  for (std::size_t at = label * 0x9E3779B1u;; ++at) {
    const std::uint32_t row = places[at & mask];
    if (row == 0) return nullptr;
    if (layers[row - 1].label == label) return &layers[row - 1];
  }
}

Algorithm1::Graph Algorithm1::prepare(const MatchGraph& graph, const std::vector<Label>& labels) const {
  Graph out;
  std::vector<std::vector<std::uint32_t>> successors(graph.size());
  out.layers.resize(graph.size());
  out.places.assign(std::bit_ceil(2 * graph.size() + 1), 0);
  for (std::uint32_t row = 0; row < graph.size(); ++row) {
    const auto all = graph.inputs_of(row);
    std::vector<std::uint32_t> inputs(all.begin(), all.end());
    std::sort(inputs.begin(), inputs.end());
    inputs.erase(std::unique(inputs.begin(), inputs.end()), inputs.end());
    for (const std::uint32_t input : inputs) successors[input].push_back(row);
    out.layers[row] = {
        .label = labels[row], .in_degree = static_cast<std::uint32_t>(inputs.size()), .input = graph[row].is_input};
    std::size_t at = labels[row] * 0x9E3779B1u;
    while (out.places[at & (out.places.size() - 1)] != 0) ++at;
    out.places[at & (out.places.size() - 1)] = row + 1;
  }
  for (std::uint32_t row = 0; row < graph.size(); ++row) {
    out.layers[row].edges_begin = static_cast<std::uint32_t>(out.edges.size());
    out.edges.insert(out.edges.end(), successors[row].begin(), successors[row].end());
    out.layers[row].edges_end = static_cast<std::uint32_t>(out.edges.size());
  }
  return out;
}

void Algorithm1::add(const MatchGraph& graph) {
  std::vector<Label> labels;
  for (const MatchGraph::Vertex& vertex : graph.vertices()) {
    labels.push_back(labels_.try_emplace(vertex.slot, static_cast<Label>(labels_.size())).first->second);
  }
  models_.push_back(prepare(graph, labels));
}

std::size_t Algorithm1::prefix(const Graph& query, const Graph& ancestor, std::vector<std::uint32_t>& visits,
                               std::vector<std::uint32_t>& frontier) {
  std::fill(visits.begin(), visits.end(), 0);
  frontier.clear();
  for (std::uint32_t row = 0; row < query.layers.size(); ++row) {
    if (query.layers[row].in_degree == 0 && ancestor.find(query.layers[row].label) != nullptr) frontier.push_back(row);
  }
  std::size_t found = 0;
  for (std::size_t next = 0; next < frontier.size(); ++next) {
    const Layer& layer = query.layers[frontier[next]];
    const Layer& twin = *ancestor.find(layer.label);
    if (!layer.input) ++found;
    for (std::uint32_t edge = layer.edges_begin; edge < layer.edges_end; ++edge) {
      const std::uint32_t row = query.edges[edge];
      for (std::uint32_t other = twin.edges_begin; other < twin.edges_end; ++other) {
        const Layer& reached = ancestor.layers[ancestor.edges[other]];
        if (reached.label != query.layers[row].label) continue;
        if (++visits[row] == std::max(query.layers[row].in_degree, reached.in_degree)) frontier.push_back(row);
        break;
      }
    }
  }
  return found;
}

Algorithm1::Best Algorithm1::best(const MatchGraph& query) const {
  std::vector<Label> labels;
  Label unknown = static_cast<Label>(labels_.size());
  for (const MatchGraph::Vertex& vertex : query.vertices()) {
    const auto found = labels_.find(vertex.slot);
    labels.push_back(found != labels_.end() ? found->second : unknown++);
  }
  const Graph prepared = prepare(query, labels);
  std::vector<std::uint32_t> visits(prepared.layers.size());
  std::vector<std::uint32_t> frontier;
  Best best;
  for (std::size_t model = 0; model < models_.size(); ++model) {
    const std::size_t layers = prefix(prepared, models_[model], visits, frontier);
    if (layers > best.layers) best = {.model = model, .layers = layers};
  }
  return best;
}

}  // namespace freshet::benchmarks
