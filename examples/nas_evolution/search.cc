#include "examples/nas_evolution/search.h"

#include <thread>
#include <utility>

#include "core/format.h"

namespace freshet::nas {
namespace {

constexpr Duration kLastWait = std::chrono::seconds(30);

}  // namespace

Search::Search(Repository& repository, const Space& space, SearchOptions options)
    : repository_(repository),
      space_(space),
      options_(std::move(options)),
      trainer_(options_.trainer),
      evolution_(space.choices(), options_.evolution) {}

Result<SearchSummary> Search::run(const OnCandidate& on_candidate) {
  on_candidate_ = on_candidate;
  {
    std::vector<std::jthread> workers;
    for (std::uint64_t i = 0; i < options_.workers; ++i) workers.emplace_back([this] { work(); });
  }
  {
    const MutexLock lock(mutex_);
    if (!first_error_) return fail(first_error_.error());
  }
  FRESHET_TRY(retire_dropped(kLastWait));
  const MutexLock lock(mutex_);
  return summary_;
}

void Search::work() {
  for (;;) {
    std::uint64_t id = 0;
    Genes genes;
    {
      const MutexLock lock(mutex_);
      if (!first_error_ || next_ == options_.candidates) return;
      id = next_++;
      genes = evolution_.ask();
    }
    Status status = evaluate_one(id, genes);
    if (status) status = retire_dropped(Duration::zero());
    if (status) continue;
    const MutexLock lock(mutex_);
    if (first_error_) first_error_ = std::move(status);
    return;
  }
}

Status Search::evaluate_one(std::uint64_t id, const Genes& genes) {
  Network network;
  space_.build(genes, network);
  const std::string name = format("{}-{}", options_.prefix, id);
  FRESHET_ASSIGN(auto architecture, to_architecture(network, space_.palette(), name));
  Candidate candidate(genes, std::move(architecture), mixed(options_.trainer.seed) ^ id);
  const auto wait = [](std::chrono::nanoseconds training) { std::this_thread::sleep_for(training); };
  auto result = evaluate(repository_, candidate, trainer_, id, name, wait);
  if (!result) return fail(std::move(result).error().with_context(name));

  SearchSummary so_far;
  {
    const MutexLock lock(mutex_);
    count(*result);
    members_[id] = result->finished.version;
    if (const auto oldest = evolution_.tell({.id = id, .genes = genes, .quality = result->outcome.quality})) {
      const auto member = members_.extract(oldest->id);
      if (options_.retire) dropped_.push_back(member.mapped());
    }
    so_far = summary_;
  }
  const MutexLock lock(reporting_);
  if (on_candidate_) on_candidate_(so_far, *result);
  return {};
}

void Search::count(const Evaluation& evaluation) {
  ++summary_.candidates;
  if (!evaluation.begun.ancestor.model.empty()) ++summary_.transferred;
  summary_.model_bytes += evaluation.model_bytes;
  summary_.read_bytes += evaluation.begun.read_bytes;
  summary_.own_bytes += evaluation.finished.own_bytes;
  summary_.training += evaluation.outcome.duration;
  summary_.matching += evaluation.begun.matching;
  summary_.reading += evaluation.begun.reading;
  summary_.putting += evaluation.finished.putting;
  if (summary_.candidates > 1 && evaluation.outcome.quality <= summary_.best_quality) return;
  summary_.best = evaluation.finished.version;
  summary_.best_quality = evaluation.outcome.quality;
}

Status Search::retire_dropped(Duration wait) {
  std::vector<VersionName> dropped;
  {
    const MutexLock lock(mutex_);
    dropped.swap(dropped_);
  }
  std::vector<VersionName> pinned;
  std::uint64_t retired = 0;
  for (const VersionName& version : dropped) {
    const auto report = repository_.retire(version, {.wait = wait});
    if (report) {
      ++retired;
    } else if (report.error().code() == Code::failed_precondition && wait == Duration::zero()) {
      pinned.push_back(version);
    } else {
      return fail(report.error());
    }
  }
  const MutexLock lock(mutex_);
  summary_.retired += retired;
  dropped_.insert(dropped_.end(), pinned.begin(), pinned.end());
  return {};
}

}  // namespace freshet::nas
