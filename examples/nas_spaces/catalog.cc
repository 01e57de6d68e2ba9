// SPDX-License-Identifier: Apache-2.0
#include "examples/nas_spaces/catalog.h"

#include <algorithm>

namespace freshet::nas {

Catalog random_catalog(const Space& space, std::size_t models, std::uint64_t seed) {
  Random random(seed);
  const Landscape landscape(seed);
  Catalog catalog(models);
  for (CatalogModel& model : catalog) {
    model.genes = random_genes(space.choices(), random);
    model.quality = landscape.quality(model.genes);
  }
  return catalog;
}

Catalog evolved_catalog(const Space& space, std::size_t models, const EvolvedOptions& options) {
  Random noise(mixed(options.seed));
  Catalog catalog;
  catalog.reserve(models);
  for (std::uint64_t search = 0; catalog.size() < models; ++search) {
    const std::uint64_t seed = mixed(options.seed + search);
    const Landscape landscape(seed);
    AgingEvolution evolution(space.choices(),
                             {.population = options.population, .sample = options.sample, .seed = seed});
    const std::size_t end = catalog.size() + std::min(options.per_search, models - catalog.size());
    while (catalog.size() < end) {
      CatalogModel model{.genes = evolution.ask()};
      model.quality = landscape.quality(model.genes) + options.noise * (noise.unit() - 0.5);
      evolution.tell({.id = catalog.size(), .genes = model.genes, .quality = model.quality});
      catalog.push_back(std::move(model));
    }
  }
  return catalog;
}

Catalog whole_space(const Space& space, std::uint64_t seed) {
  const Landscape landscape(seed);
  Catalog catalog;
  Genes genes(space.choices().size());
  do {
    catalog.push_back({.genes = genes, .quality = landscape.quality(genes)});
  } while (advance(genes, space.choices()));
  return catalog;
}

std::vector<Genes> mutated_members(const Space& space, const Catalog& catalog, std::size_t count, std::uint64_t seed) {
  Random random(seed);
  std::vector<Genes> queries;
  queries.reserve(count);
  for (std::size_t i = 0; i < count && !catalog.empty(); ++i) {
    const CatalogModel& member = catalog[random.below(static_cast<std::uint32_t>(catalog.size()))];
    queries.push_back(mutated(member.genes, space.choices(), random));
  }
  return queries;
}

}  // namespace freshet::nas
