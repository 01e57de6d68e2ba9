#pragma once

/// Aging evolution over a space, against a repository: workers evaluate candidates, and who drops out of the population
/// is retired.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/mutex.h"
#include "core/result.h"
#include "examples/nas_evolution/trainer.h"
#include "examples/nas_evolution/worker.h"
#include "examples/nas_spaces/spaces.h"
#include "repo/repository.h"

namespace freshet::nas {

struct SearchOptions {
  std::uint64_t candidates = 200;
  std::uint64_t workers = 2;
  AgingEvolution::Options evolution;
  TrainerOptions trainer;
  bool retire = true;
  std::string prefix = "candidate";  ///< Candidate 7 is put as the model "candidate-7".
};

/// Sums over all candidates.
struct SearchSummary {
  std::uint64_t candidates = 0;
  std::uint64_t transferred = 0;  ///< That had an ancestor.
  std::uint64_t retired = 0;
  std::uint64_t model_bytes = 0;
  std::uint64_t read_bytes = 0;
  std::uint64_t own_bytes = 0;
  std::chrono::nanoseconds training{};
  std::chrono::nanoseconds matching{};
  std::chrono::nanoseconds reading{};
  std::chrono::nanoseconds putting{};
  VersionName best;
  double best_quality = 0;
};

/// run() once, by one thread.
class Search {
 public:
  Search(Repository& repository, const Space& space, SearchOptions options);

  /// Called after each candidate, by one worker at a time.
  using OnCandidate = std::function<void(const SearchSummary& so_far, const Evaluation& last)>;
  /// Ends when all candidates were evaluated, or at the first error: that of a candidate or of a retirement.
  Result<SearchSummary> run(const OnCandidate& on_candidate);

 private:
  /// One worker's life.
  void work();
  Status evaluate_one(std::uint64_t id, const Genes& genes);
  void count(const Evaluation& evaluation) FRESHET_REQUIRES(mutex_);
  /// Retires what dropped out. Whoever is still pinned, by a worker that learns from it, is left for a later turn, or
  /// waited for at the end.
  Status retire_dropped(Duration wait);

  Repository& repository_;
  const Space& space_;
  const SearchOptions options_;
  const SimulatedTrainer trainer_;
  OnCandidate on_candidate_;

  Mutex mutex_;
  AgingEvolution evolution_ FRESHET_GUARDED_BY(mutex_);
  std::uint64_t next_ FRESHET_GUARDED_BY(mutex_) = 0;
  std::map<std::uint64_t, VersionName> members_ FRESHET_GUARDED_BY(mutex_);  ///< Of the population, by candidate.
  std::vector<VersionName> dropped_ FRESHET_GUARDED_BY(mutex_);
  SearchSummary summary_ FRESHET_GUARDED_BY(mutex_);
  Status first_error_ FRESHET_GUARDED_BY(mutex_);

  Mutex reporting_;  ///< Held while on_candidate_ runs.
};

}  // namespace freshet::nas
