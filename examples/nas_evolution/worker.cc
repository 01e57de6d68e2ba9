// SPDX-License-Identifier: Apache-2.0
#include "examples/nas_evolution/worker.h"

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/format.h"
#include "repo/files/import.h"
#include "repo/match/graph.h"

namespace freshet::nas {
namespace {

constexpr const char* kEpochs = "epochs";

class Stopwatch {
 public:
  /// Since the last lap.
  std::chrono::nanoseconds lap() {
    const auto now = std::chrono::steady_clock::now();
    return now - std::exchange(start_, now);
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

double metric(const Manifest& manifest, std::string_view name) {
  for (const auto& [key, value] : manifest.metrics) {
    if (key == name) return value;
  }
  return 0;
}

Status transfer(const Repository& repository, Candidate& candidate, Begun& begun) {
  FRESHET_ASSIGN(VersionRecord ancestor, repository.get(begun.ancestor));
  const std::vector<SharedTensor> shared = shared_tensors(*candidate.architecture(), *ancestor.manifest.architecture);
  std::vector<Repository::TensorRead> reads;
  for (const SharedTensor& tensor : shared) {
    reads.push_back({.tensor = tensor.theirs, .out = candidate.tensor(tensor.ours)});
    begun.read_bytes += reads.back().out.size();
    candidate.freeze(tensor.ours);
  }
  FRESHET_TRY(repository.read(ancestor, reads));
  if (shared.size() == candidate.tensors() && !shared.empty()) candidate.thaw(shared.back().ours);
  begun.inherited_epochs = metric(ancestor.manifest, kEpochs);
  begun.record = std::move(ancestor);
  return {};
}

/// Finds the ancestor; it is pinned.
Result<Begun> find(Repository& repository, const Candidate& candidate, const std::string& holder, Objective objective) {
  Begun begun;
  begun.holder = holder;
  Stopwatch watch;
  MatchQuery query;
  query.graph = MatchGraph::of(*candidate.architecture());
  query.objective = objective;
  query.pin_by = holder;
  FRESHET_ASSIGN(const MatchAnswer answer, repository.match(query));
  begun.matching = watch.lap();
  if (!answer.top.empty()) begun.ancestor = answer.top[0].version;
  return begun;
}

Status read(const Repository& repository, Candidate& candidate, Begun& begun) {
  if (begun.ancestor.model.empty()) return {};
  Stopwatch watch;
  FRESHET_TRY(transfer(repository, candidate, begun));
  begun.reading = watch.lap();
  return {};
}

enum class Given { trained, all };

Result<Finished> store(Repository& repository, const Candidate& candidate, const Begun& begun,
                       const SimulatedTrainer::Outcome& outcome, const std::string& model, Given given) {
  Stopwatch watch;
  const bool transferred = begun.record.has_value();
  const std::vector<TensorView> tensors = candidate.views(transferred && given == Given::trained);
  StageRequest request{.model = model, .architecture = candidate.architecture(), .tensors = tensors};
  if (transferred) request.ancestor_record = &*begun.record;
  request.quality = outcome.quality;
  request.metrics = {{kEpochs, outcome.epochs}};
  FRESHET_ASSIGN(const StagedPut staged, stage_put(repository, request));
  Finished finished;
  finished.own_bytes = staged.own_bytes;
  FRESHET_ASSIGN(finished.version, repository.put(staged.manifest, staged.bytes_of(), staged.options));
  finished.putting = watch.lap();
  return finished;
}

/// Tries until patience ends, with a pause between from the second time on.
class Tries {
 public:
  explicit Tries(const Patience& patience)
      : patience_(patience), end_(system_clock().now() + patience.longest), pause_(patience.pause) {}
  /// False when no time is left.
  bool another() {
    if (system_clock().now() >= end_) return false;
    if (count_++ > 0) {
      std::this_thread::sleep_for(pause_);
      pause_ = std::min(pause_ * 2, patience_.pause_max);
    }
    return true;
  }
  std::uint64_t count() const { return count_; }

 private:
  const Patience patience_;
  const Time end_;
  Duration pause_;
  std::uint64_t count_ = 0;
};

void let_go(Repository& repository, const Begun& begun, Evaluation& evaluation) {
  if (!abandon(repository, begun)) evaluation.still_pinned.push_back(begun);
}

/// Begins with an ancestor if one can be read, which is found anew once.
Status begin_patiently(Repository& repository, Candidate& candidate, const std::string& holder,
                       const Patience& patience, Evaluation& evaluation) {
  bool failed_to_read = false;
  for (Tries tries(patience);;) {
    Result<Begun> found = find(repository, candidate, holder, Objective::layers);
    if (!found) {
      if (!is_away(found.error())) return fail(found.error());
      if (tries.another()) continue;
      return fail(std::move(found).error().with_context("no provider answers"));
    }
    evaluation.begun = *std::move(found);
    const Status was_read = read(repository, candidate, evaluation.begun);
    if (was_read) return {};
    let_go(repository, evaluation.begun, evaluation);
    evaluation.begun = Begun();
    evaluation.begun.holder = holder;
    candidate.start_over();
    // One that is damaged is left alone, too.
    if (!is_away(was_read.error()) && was_read.error().code() != Code::corrupt) return was_read;
    evaluation.without_transfer = failed_to_read;
    if (failed_to_read) return {};
    failed_to_read = true;
  }
}

/// The version stays empty when nobody took it.
Status store_patiently(Repository& repository, const Candidate& candidate, const std::string& model,
                       const Patience& patience, Evaluation& evaluation) {
  std::string name = model;
  Given given = Given::trained;
  for (Tries tries(patience);;) {
    Result<Finished> finished = store(repository, candidate, evaluation.begun, evaluation.outcome, name, given);
    if (finished) {
      evaluation.finished = *std::move(finished);
      return {};
    }
    if (!is_away(finished.error())) return fail(finished.error());
    evaluation.doubtful.push_back(name);
    if (!tries.another()) return {};
    evaluation.puts_again = tries.count();
    name = format("{}-{}", model, tries.count() + 1);
    given = Given::all;
  }
}

}  // namespace

bool is_away(const Error& error) { return error.code() == Code::unavailable || error.code() == Code::timed_out; }

Result<Begun> begin(Repository& repository, Candidate& candidate, const std::string& holder, Objective objective) {
  FRESHET_ASSIGN(Begun begun, find(repository, candidate, holder, objective));
  if (Status status = read(repository, candidate, begun); !status) {
    (void)abandon(repository, begun);  // The first error is the one that tells.
    return fail(std::move(status).error());
  }
  return begun;
}

Result<Finished> finish(Repository& repository, const Candidate& candidate, const Begun& begun,
                        const SimulatedTrainer::Outcome& outcome, const std::string& model) {
  Stopwatch watch;
  FRESHET_ASSIGN(Finished finished, store(repository, candidate, begun, outcome, model, Given::trained));
  FRESHET_TRY(abandon(repository, begun));
  finished.putting = watch.lap();
  return finished;
}

Status abandon(Repository& repository, const Begun& begun) {
  return begun.ancestor.model.empty() ? Status() : repository.unpin(begun.ancestor, begun.holder);
}

Result<Evaluation> evaluate(Repository& repository, Candidate& candidate, const SimulatedTrainer& trainer,
                            std::uint64_t id, const std::string& model,
                            const std::function<void(std::chrono::nanoseconds)>& wait, const Patience& patience) {
  Evaluation evaluation;
  evaluation.model_bytes = candidate.architecture()->bytes();
  FRESHET_TRY(begin_patiently(repository, candidate, model, patience, evaluation));
  evaluation.outcome = trainer.train(candidate, id, evaluation.begun.inherited_epochs);
  wait(evaluation.outcome.duration);
  const Status stored = store_patiently(repository, candidate, model, patience, evaluation);
  Stopwatch watch;
  let_go(repository, evaluation.begun, evaluation);
  evaluation.finished.putting += watch.lap();
  if (!stored) return fail(stored.error());
  return evaluation;
}

}  // namespace freshet::nas
