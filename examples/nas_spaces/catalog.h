// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Catalogs: many models of one space, as a search leaves them behind, and queries for them.

#include <cstdint>
#include <vector>

#include "examples/nas_spaces/evolution.h"
#include "examples/nas_spaces/spaces.h"

namespace freshet::nas {

struct CatalogModel {
  Genes genes;
  double quality = 0;
};
using Catalog = std::vector<CatalogModel>;

/// Independent random candidates.
Catalog random_catalog(const Space& space, std::size_t models, std::uint64_t seed);

/// All candidates of an aging evolution, in the order of their evaluation. Evaluations are noisy, as trainings are, so
/// the population keeps moving. A search stops after `per_search` candidates and another one begins from scratch, on
/// another landscape: a catalog that outlives one search.
struct EvolvedOptions {
  std::uint64_t seed = 1;
  std::size_t population = 100;
  std::size_t sample = 10;
  std::size_t per_search = SIZE_MAX;
  double noise = 1.0 / 64;  ///< A power of two, so that no machine rounds differently.
};
Catalog evolved_catalog(const Space& space, std::size_t models, const EvolvedOptions& options);

/// Every candidate of a space that is small enough to list.
Catalog whole_space(const Space& space, std::uint64_t seed);

/// Candidates that a search might ask about: members, each with one mutation.
std::vector<Genes> mutated_members(const Space& space, const Catalog& catalog, std::size_t count, std::uint64_t seed);

}  // namespace freshet::nas
