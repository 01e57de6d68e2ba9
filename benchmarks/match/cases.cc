// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/match/cases.h"

#include <string>
#include <unordered_map>
#include <utility>

#include "core/base/format.h"

namespace freshet::benchmarks {

std::shared_ptr<const MatchGraph> GraphMaker::make(const nas::Network& network, const nas::Palette& palette) {
  hasher_.compute(network, palette, slots_);
  MatchGraph::Parts parts;
  parts.input_starts.push_back(0);
  for (std::size_t call = 0; call < network.size(); ++call) {
    const std::uint32_t kind = network.kind(call);
    parts.vertices.push_back({.slot = slots_[call],
                              .is_input = palette.is_input(kind),
                              .parametric = !palette[kind].tensors.empty(),
                              .bytes = palette.bytes(kind)});
    const auto inputs = network.inputs(call);
    parts.inputs.insert(parts.inputs.end(), inputs.begin(), inputs.end());
    parts.input_starts.push_back(static_cast<std::uint32_t>(parts.inputs.size()));
  }
  auto graph = MatchGraph::build(std::move(parts));
  return graph ? *graph : nullptr;
}

MatchCase make_case(const std::string& name, const nas::Space& space, const nas::Catalog& catalog,
                    std::size_t queries) {
  MatchCase out{.name = name, .models = {}, .queries = {}, .architecture = {}};
  out.architecture = [&space, &catalog](std::size_t model) {
    nas::Network of_model;
    space.build(catalog[model].genes, of_model);
    return nas::to_architecture(of_model, space.palette(), format("candidate-{}", model));
  };
  GraphMaker maker;
  nas::Network network;
  std::unordered_map<std::string, std::shared_ptr<const MatchGraph>> known;  // By genes.
  out.models.reserve(catalog.size());
  for (const nas::CatalogModel& model : catalog) {
    std::shared_ptr<const MatchGraph>& graph = known[std::string(model.genes.begin(), model.genes.end())];
    if (!graph) {
      space.build(model.genes, network);
      graph = maker.make(network, space.palette());
    }
    out.models.push_back({.graph = graph, .quality = model.quality});
  }
  constexpr std::uint64_t kQuerySeed = 20'240'603;  // Not that of any catalog.
  for (const nas::Genes& genes : nas::mutated_members(space, catalog, queries, kQuerySeed)) {
    space.build(genes, network);
    out.queries.push_back(maker.make(network, space.palette()));
  }
  return out;
}

Result<MatchCase> make_corpus_case(const std::string& path) {
  FRESHET_ASSIGN(const nas::Corpus corpus, nas::read_corpus(path));
  MatchCase out{.name = "published_networks", .models = {}, .queries = {}, .architecture = {}};
  GraphMaker maker;
  for (std::size_t i = 0; i < corpus.graphs.size(); ++i) {
    auto graph = maker.make(corpus.graphs[i].network, corpus.palette);
    if (!graph) return fail(Code::invalid_argument, format("{}: {} is no graph", path, corpus.graphs[i].name));
    if (i % 2 == 0) {
      out.models.push_back({.graph = std::move(graph)});
    } else {
      out.queries.push_back(std::move(graph));
    }
  }
  return out;
}

IndexEntry entry_of(const MatchCase& match_case, std::size_t model) {
  return {.name = {.model = format("candidate-{}", model), .number = 1},
          .id = {.run = {.high = 1, .low = 1}, .incarnation = 1, .sequence = model + 1},
          .graph = match_case.models[model].graph,
          .quality = match_case.models[model].quality,
          .commit = model + 1,
          .tags = {},
          .ancestor = std::nullopt};
}

}  // namespace freshet::benchmarks
