// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Aging evolution (Real et al., "Regularized evolution for image classifier architecture search", 2019), as EvoStore's
/// experiments use it: a queue of candidates; a new one is a mutation of the best of a random sample; the oldest drops
/// out, however good it is.

#include <cstdint>
#include <deque>
#include <optional>

#include "examples/nas_spaces/genes.h"

namespace freshet::nas {

/// One thread at a time. What is asked and told in the same order comes out the same for the same seed.
class AgingEvolution {
 public:
  struct Options {
    std::size_t population = 100;
    std::size_t sample = 10;
    std::uint64_t seed = 1;
  };
  /// `choices` must stay.
  AgingEvolution(Choices choices, Options options) : choices_(choices), options_(options), random_(options.seed) {}

  /// A candidate to evaluate: random until the population is full. Any number may be under evaluation.
  Genes ask();

  struct Member {
    std::uint64_t id = 0;  ///< As the caller counts candidates.
    Genes genes;
    double quality = 0;
  };
  /// The member that dropped out for it, if one did.
  std::optional<Member> tell(Member member);

  const std::deque<Member>& population() const { return population_; }

 private:
  const Choices choices_;
  const Options options_;
  Random random_;
  std::deque<Member> population_;  ///< Oldest first.
};

/// A made-up quality of candidates, in [0, 1): every gene's choice has a value, which depends on the choices of the
/// gene before too, so that evolution finds slopes and hills (an NK landscape with K = 1).
class Landscape {
 public:
  explicit Landscape(std::uint64_t seed) : seed_(seed) {}
  double quality(const Genes& genes) const;

 private:
  const std::uint64_t seed_;
};

}  // namespace freshet::nas
