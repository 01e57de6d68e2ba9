// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Aging evolution over a space, against a repository: workers evaluate candidates, and who drops out of the population
/// is retired.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/result.h"
#include "examples/nas_evolution/ledger.h"
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
  Patience patience;
  bool retire = true;
  std::string prefix = "candidate";  ///< Candidate 7 is put as the model "candidate-7"; with "-2" and so on behind it
                                     ///< when it had to be put again.
  const Ledger* ledger = nullptr;    ///< Where the search writes down what was stored and retired; null: nowhere.
};

/// What the best candidate so far goes by: "candidate-174@best". An alias keeps its version from being retired.
inline constexpr const char* kBestAlias = "best";

/// How many models of such names that repository has: candidates that an earlier search left, its population and its
/// best one. Those that were retired do not count.
Result<std::uint64_t> candidates_in(const Repository& repository, const std::string& prefix);

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
  VersionName best;  ///< Of all candidates ever. It is not retired, however old it gets.
  double best_quality = 0;
  bool best_is_named = false;  ///< It has the alias kBestAlias; false where a provider that is away kept it from it.
  // What came of providers that were away; all zero when none was, and nobody else pins what is retired.
  std::uint64_t without_transfer = 0;  ///< Candidates whose ancestor could not be read.
  std::uint64_t puts_again = 0;
  std::uint64_t unstored = 0;   ///< Candidates that were trained, and that nobody took.
  std::uint64_t unretired = 0;  ///< Versions that are left to be retired.
};

/// run() once, by one thread.
class Search {
 public:
  Search(Repository& repository, const Space& space, SearchOptions options);

  /// Called after each candidate, by one worker at a time.
  using OnCandidate = std::function<void(const SearchSummary& so_far, const Evaluation& last)>;
  /// Ends when all candidates were evaluated, or at the first error: that of a candidate or of a retirement. That a
  /// provider is away is none, as long as others answer.
  Result<SearchSummary> run(const OnCandidate& on_candidate);

 private:
  /// One worker's life.
  void work();
  Status evaluate_one(std::uint64_t id, const Genes& genes);
  void count(const Evaluation& evaluation) FRESHET_REQUIRES(mutex_);
  /// Moves the alias to the best candidate so far.
  Status name_best();
  enum class Turn { one_of_many, last };
  /// Retires what dropped out. Whoever is still pinned, by a worker that learns from it, is left for a later turn, and
  /// in the last one waited for; whose home is away is left, too. What is left in the end is counted. The best one is
  /// not retired before there is a better one.
  Status retire_dropped(Turn turn);
  /// Lets go of ancestors whose homes were away.
  void let_go(std::size_t most);
  /// What failed puts may have stored all the same.
  void drop_doubtful();

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
  std::vector<Begun> still_pinned_ FRESHET_GUARDED_BY(mutex_);
  std::vector<std::string> doubtful_ FRESHET_GUARDED_BY(mutex_);  ///< Models.
  VersionName named_ FRESHET_GUARDED_BY(mutex_);                  ///< Has the alias; empty at first.
  std::vector<VersionName> renamed_ FRESHET_GUARDED_BY(mutex_);   ///< Have it still, though another one is better.
  bool naming_ FRESHET_GUARDED_BY(mutex_) = false;                ///< One worker moves the alias at a time.
  SearchSummary summary_ FRESHET_GUARDED_BY(mutex_);
  Status first_error_ FRESHET_GUARDED_BY(mutex_);

  Mutex reporting_;  ///< Held while on_candidate_ runs.
};

}  // namespace freshet::nas
