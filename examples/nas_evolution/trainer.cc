// SPDX-License-Identifier: Apache-2.0
#include "examples/nas_evolution/trainer.h"

#include <algorithm>
#include <cmath>

namespace freshet::nas {
namespace {

constexpr double kEpochsToLearn = 1.5;  ///< After which 63 % of what can be learned is.
constexpr double kSpread = 0.1;         ///< No two trainings take equally long.

/// Random candidates lie around the middle of a landscape, the best ones a quarter above it.
double ceiling_of(double landscape) { return std::clamp(0.5 + 1.6 * (landscape - 0.5), 0.1, 0.99); }

}  // namespace

SimulatedTrainer::Outcome SimulatedTrainer::train(Candidate& candidate, std::uint64_t id,
                                                  double inherited_epochs) const {
  const double trainable = candidate.trainable_share();
  Random random(mixed(options_.seed) ^ mixed(id + 1));
  candidate.train(random.next());
  const double epochs = 1 + (1 - trainable) * inherited_epochs;
  const double learned = 1 - std::exp(-epochs / kEpochsToLearn);
  const double noise = 0.01 * (random.unit() - 0.5);
  const double duration = (1.0 / 3 + 2.0 / 3 * trainable) * (1 + kSpread * (random.unit() - 0.5));
  return {.quality = ceiling_of(landscape_.quality(candidate.genes())) * learned + noise,
          .epochs = epochs,
          .duration = std::chrono::nanoseconds(
              static_cast<std::int64_t>(duration * static_cast<double>(options_.epoch.count())))};
}

}  // namespace freshet::nas
