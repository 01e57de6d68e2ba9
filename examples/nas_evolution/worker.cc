#include "examples/nas_evolution/worker.h"

#include <utility>
#include <vector>

#include "repo/import.h"
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
  FRESHET_ASSIGN(const VersionRecord ancestor, repository.get(begun.ancestor));
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
  return {};
}

}  // namespace

Result<Begun> begin(Repository& repository, Candidate& candidate, const std::string& holder, Objective objective) {
  Begun begun;
  begun.holder = holder;
  Stopwatch watch;
  MatchQuery query;
  query.graph = MatchGraph::of(*candidate.architecture());
  query.objective = objective;
  query.pin_by = holder;
  FRESHET_ASSIGN(const MatchAnswer answer, repository.match(query));
  begun.matching = watch.lap();
  if (answer.top.empty()) return begun;
  begun.ancestor = answer.top[0].version;
  if (Status status = transfer(repository, candidate, begun); !status) {
    (void)abandon(repository, begun);  // The first error is the one that tells.
    return fail(std::move(status).error());
  }
  begun.reading = watch.lap();
  return begun;
}

Result<Finished> finish(Repository& repository, const Candidate& candidate, const Begun& begun,
                        const SimulatedTrainer::Outcome& outcome, const std::string& model) {
  Stopwatch watch;
  const bool transferred = !begun.ancestor.model.empty();
  const std::vector<TensorView> trained = candidate.views(transferred);
  StageRequest request{.model = model, .architecture = candidate.architecture(), .tensors = trained};
  if (transferred) request.ancestor = begun.ancestor;
  request.quality = outcome.quality;
  request.metrics = {{kEpochs, outcome.epochs}};
  FRESHET_ASSIGN(const StagedPut staged, stage_put(repository, request));
  Finished finished;
  finished.own_bytes = staged.own_bytes;
  FRESHET_ASSIGN(finished.version, repository.put(staged.manifest, staged.bytes_of(), staged.options));
  FRESHET_TRY(abandon(repository, begun));
  finished.putting = watch.lap();
  return finished;
}

Status abandon(Repository& repository, const Begun& begun) {
  return begun.ancestor.model.empty() ? Status() : repository.unpin(begun.ancestor, begun.holder);
}

Result<Evaluation> evaluate(Repository& repository, Candidate& candidate, const SimulatedTrainer& trainer,
                            std::uint64_t id, const std::string& model,
                            const std::function<void(std::chrono::nanoseconds)>& wait) {
  Evaluation evaluation;
  evaluation.model_bytes = candidate.architecture()->bytes();
  FRESHET_ASSIGN(evaluation.begun, begin(repository, candidate, model));
  evaluation.outcome = trainer.train(candidate, id, evaluation.begun.inherited_epochs);
  wait(evaluation.outcome.duration);
  auto finished = finish(repository, candidate, evaluation.begun, evaluation.outcome, model);
  if (!finished) {
    (void)abandon(repository, evaluation.begun);  // The first error is the one that tells.
    return fail(std::move(finished).error());
  }
  evaluation.finished = std::move(*finished);
  return evaluation;
}

}  // namespace freshet::nas
