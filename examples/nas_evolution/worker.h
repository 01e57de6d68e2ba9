// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What a search's worker does with one candidate: match, read, train, put, unpin. The heart of this example.

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "examples/nas_evolution/candidate.h"
#include "examples/nas_evolution/trainer.h"
#include "repo/repository.h"

namespace freshet::nas {

/// How a candidate began. Its ancestor, if it has one, stays pinned until finish() or abandon().
struct Begun {
  VersionName ancestor;                 ///< Empty when it begins from scratch.
  std::string holder;                   ///< Who pins it.
  std::optional<VersionRecord> record;  ///< The ancestor's, once it was read.
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

/// How a worker goes on while a provider of its repository is away. Its own work is not lost for that: an ancestor that
/// cannot be read is done without, a put is tried again, with all tensors, since what it would inherit may be out of
/// reach, and as a model of another name, since whoever numbers this one's versions may be.
struct Patience {
  Duration longest = std::chrono::seconds(30);     ///< To wait for an answer, and to try to store one candidate.
  Duration pause = std::chrono::milliseconds(10);  ///< After the second try; doubled each time, up to
  Duration pause_max = std::chrono::seconds(1);
};
bool is_away(const Error& error);

struct Evaluation {
  Begun begun;
  SimulatedTrainer::Outcome outcome;
  Finished finished;  ///< Its version is empty when nobody took it in all that time.
  std::uint64_t model_bytes = 0;
  bool without_transfer = false;      ///< It had an ancestor, which could not be read.
  std::uint64_t puts_again = 0;       ///< After the first.
  std::vector<std::string> doubtful;  ///< Models of puts that failed; they may have been stored all the same.
  std::vector<Begun> still_pinned;    ///< Could not be let go of: to be tried again.
};

/// All of it. Nothing stays pinned but what is said so, whatever happens. `wait` is called with the time that training
/// takes. Errors: anything that is not a provider's absence; unavailable when no provider answered for as long as
/// patience goes.
Result<Evaluation> evaluate(Repository& repository, Candidate& candidate, const SimulatedTrainer& trainer,
                            std::uint64_t id, const std::string& model,
                            const std::function<void(std::chrono::nanoseconds)>& wait, const Patience& patience = {});

}  // namespace freshet::nas
