// SPDX-License-Identifier: Apache-2.0
#include "examples/nas_spaces/evolution.h"

#include <utility>

namespace freshet::nas {

Genes AgingEvolution::ask() {
  if (population_.size() < options_.population) return random_genes(choices_, random_);
  const Member* best = nullptr;
  for (std::size_t i = 0; i < options_.sample; ++i) {
    const Member& member = population_[random_.below(static_cast<std::uint32_t>(population_.size()))];
    if (best == nullptr || member.quality > best->quality) best = &member;
  }
  return mutated(best->genes, choices_, random_);
}

std::optional<AgingEvolution::Member> AgingEvolution::tell(Member member) {
  population_.push_back(std::move(member));
  if (population_.size() <= options_.population) return std::nullopt;
  Member oldest = std::move(population_.front());
  population_.pop_front();
  return oldest;
}

double Landscape::quality(const Genes& genes) const {
  double sum = 0;
  std::uint64_t before = 0;
  for (std::size_t i = 0; i < genes.size(); ++i) {
    const std::uint64_t alone = mixed(seed_ ^ (i << 16) ^ genes[i]);
    const std::uint64_t joint = mixed(alone ^ (before << 40));
    sum += 0.5 * unit_interval(mixed(alone)) + 0.5 * unit_interval(joint);
    before = genes[i] + 1u;
  }
  return genes.empty() ? 0 : sum / static_cast<double>(genes.size());
}

}  // namespace freshet::nas
