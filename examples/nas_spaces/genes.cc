// SPDX-License-Identifier: Apache-2.0
#include "examples/nas_spaces/genes.h"

namespace freshet::nas {

Genes random_genes(Choices choices, Random& random) {
  Genes genes;
  genes.reserve(choices.size());
  for (const std::uint8_t count : choices) genes.push_back(static_cast<std::uint8_t>(random.below(count)));
  return genes;
}

Genes mutated(const Genes& genes, Choices choices, Random& random) {
  Genes out = genes;
  std::size_t gene = random.below(static_cast<std::uint32_t>(out.size()));
  while (choices[gene] < 2) gene = random.below(static_cast<std::uint32_t>(out.size()));
  const std::uint32_t other = random.below(choices[gene] - 1u);
  out[gene] = static_cast<std::uint8_t>(other < out[gene] ? other : other + 1);
  return out;
}

bool advance(Genes& genes, Choices choices) {
  for (std::size_t i = genes.size(); i-- > 0;) {
    if (++genes[i] < choices[i]) return true;
    genes[i] = 0;
  }
  return false;
}

}  // namespace freshet::nas
