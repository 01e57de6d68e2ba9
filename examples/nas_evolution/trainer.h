// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A trainer that trains nothing: how long an epoch takes and how good the candidate is afterwards are made up, from
/// what is known of transfer learning in searches (EvoStore, section 5.6). It is the same for all who compare ways to
/// keep the models.

#include <chrono>
#include <cstdint>

#include "examples/nas_evolution/candidate.h"
#include "examples/nas_spaces/evolution.h"

namespace freshet::nas {

struct TrainerOptions {
  std::chrono::nanoseconds epoch = std::chrono::seconds(1);  ///< With nothing frozen.
  std::uint64_t seed = 1;
};

/// Immutable; any thread.
class SimulatedTrainer {
 public:
  explicit SimulatedTrainer(TrainerOptions options) : options_(options), landscape_(options.seed) {}

  struct Outcome {
    double quality = 0;  ///< Between 0 and 1.
    double epochs = 0;   ///< That its layers have seen, those of inherited ones counted.
    std::chrono::nanoseconds duration{};
  };
  /// One epoch. `inherited_epochs` is what the ancestor had. Frozen layers keep what they learned, in proportion to
  /// their share of the bytes; a third of an epoch is the forward pass, which they take part in, and two thirds are the
  /// backward pass, which they don't. A candidate's architecture bounds how good it can get.
  Outcome train(Candidate& candidate, std::uint64_t id, double inherited_epochs) const;

 private:
  const TrainerOptions options_;
  const Landscape landscape_;
};

}  // namespace freshet::nas
