#pragma once

/// What a search's worker does with one candidate: match, read, train, put, unpin. The heart of this example.

#include <chrono>
#include <functional>
#include <string>

#include "core/result.h"
#include "examples/nas_evolution/candidate.h"
#include "examples/nas_evolution/trainer.h"
#include "repo/repository.h"

namespace freshet::nas {

/// How a candidate began. Its ancestor, if it has one, stays pinned until finish() or abandon().
struct Begun {
  VersionName ancestor;  ///< Empty when it begins from scratch.
  std::string holder;    ///< Who pins it.
  double inherited_epochs = 0;
  std::uint64_t read_bytes = 0;  ///< From the ancestor.
  std::chrono::nanoseconds matching{};
  std::chrono::nanoseconds reading{};
};

/// Finds the best ancestor, which is pinned by that very answer, reads the layers that it shares straight into the
/// candidate's tensors, and freezes them. When all are shared, the last tensor stays free, or there were nothing to
/// train.
Result<Begun> begin(Repository& repository, Candidate& candidate, const std::string& holder,
                    Objective objective = Objective::layers);

struct Finished {
  VersionName version;
  std::uint64_t own_bytes = 0;  ///< That the repository had to store.
  std::chrono::nanoseconds putting{};
};

/// Puts what was trained as a version of `model`, with what it inherits by name only, and lets go of the ancestor.
Result<Finished> finish(Repository& repository, const Candidate& candidate, const Begun& begun,
                        const SimulatedTrainer::Outcome& outcome, const std::string& model);

/// Lets go of the ancestor.
Status abandon(Repository& repository, const Begun& begun);

struct Evaluation {
  Begun begun;
  SimulatedTrainer::Outcome outcome;
  Finished finished;
  std::uint64_t model_bytes = 0;
};

/// All of it. Nothing stays pinned, whatever happens. `wait` is called with the time that training takes.
Result<Evaluation> evaluate(Repository& repository, Candidate& candidate, const SimulatedTrainer& trainer,
                            std::uint64_t id, const std::string& model,
                            const std::function<void(std::chrono::nanoseconds)>& wait);

}  // namespace freshet::nas
