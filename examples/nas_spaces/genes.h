// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A candidate as a search sees it: one choice for each decision of a space. What the choices mean is up to the space.

#include <cstdint>
#include <span>
#include <vector>

#include "examples/nas_spaces/random.h"

namespace freshet::nas {

using Genes = std::vector<std::uint8_t>;
/// For each gene, how many choices it has.
using Choices = std::span<const std::uint8_t>;

Genes random_genes(Choices choices, Random& random);

/// One gene that has a choice, drawn evenly, takes another one of its choices. REQUIRES: some gene has two choices.
Genes mutated(const Genes& genes, Choices choices, Random& random);

/// The next one of the enumeration of all genes, the last gene running fastest; false after the last one.
bool advance(Genes& genes, Choices choices);

}  // namespace freshet::nas
