// SPDX-License-Identifier: Apache-2.0
#include "examples/nas_evolution/search.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <thread>
#include <utility>

#include "core/base/format.h"

namespace freshet::nas {
namespace {

constexpr Duration kLastWait = std::chrono::seconds(30);
constexpr std::size_t kAtATurn = 16;  ///< Of what is left from earlier turns, too.

/// The first `most`, which are then left out of `all`.
template <typename T>
std::vector<T> take(std::vector<T>& all, std::size_t most) {
  const auto end = all.begin() + static_cast<std::ptrdiff_t>(std::min(most, all.size()));
  std::vector<T> taken(std::make_move_iterator(all.begin()), std::make_move_iterator(end));
  all.erase(all.begin(), end);
  return taken;
}

}  // namespace

Result<std::uint64_t> candidates_in(const Repository& repository, const std::string& prefix) {
  FRESHET_ASSIGN(const std::vector<std::string> models, repository.models());
  return static_cast<std::uint64_t>(
      std::ranges::count_if(models, [&](const std::string& model) { return model.starts_with(prefix + "-"); }));
}

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
  drop_doubtful();
  FRESHET_TRY(retire_dropped(Turn::last));
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
    if (status) status = retire_dropped(Turn::one_of_many);
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
  auto result = evaluate(repository_, candidate, trainer_, id, name, wait, options_.patience);
  if (!result) return fail(std::move(result).error().with_context(name));
  const bool is_stored = !result->finished.version.model.empty();
  if (is_stored && options_.ledger) FRESHET_TRY(options_.ledger->stored(result->finished.version, candidate));

  SearchSummary so_far;
  {
    const MutexLock lock(mutex_);
    count(*result);
    if (!is_stored) return {};
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
  summary_.without_transfer += evaluation.without_transfer ? 1 : 0;
  summary_.puts_again += evaluation.puts_again;
  doubtful_.insert(doubtful_.end(), evaluation.doubtful.begin(), evaluation.doubtful.end());
  still_pinned_.insert(still_pinned_.end(), evaluation.still_pinned.begin(), evaluation.still_pinned.end());
  if (evaluation.finished.version.model.empty()) {
    ++summary_.unstored;
    return;
  }
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

Status Search::retire_dropped(Turn turn) {
  const bool is_last = turn == Turn::last;
  let_go(is_last ? SIZE_MAX : kAtATurn);
  FRESHET_TRY(name_best());
  std::vector<VersionName> dropped;
  {
    const MutexLock lock(mutex_);
    const auto best = std::ranges::find(dropped_, summary_.best);
    if (best != dropped_.end()) std::rotate(best, best + 1, dropped_.end());
    const std::size_t most = dropped_.size() - (best != dropped_.end() ? 1 : 0);
    dropped = take(dropped_, std::min(most, is_last ? SIZE_MAX : kAtATurn));
  }
  std::vector<VersionName> left;
  std::uint64_t retired = 0;
  for (const VersionName& version : dropped) {
    if (options_.ledger) FRESHET_TRY(options_.ledger->retiring(version));
    const auto report = repository_.retire(version, {.wait = is_last ? kLastWait : Duration::zero()});
    if (report || report.error().code() == Code::not_found) {  // An earlier turn's answer may have been lost.
      ++retired;
    } else if (is_away(report.error()) || report.error().code() == Code::failed_precondition) {
      left.push_back(version);
    } else {
      return fail(report.error());
    }
  }
  const MutexLock lock(mutex_);
  summary_.retired += retired;
  summary_.unretired = is_last ? left.size() : 0;
  dropped_.insert(dropped_.end(), left.begin(), left.end());
  return {};
}

Status Search::name_best() {
  VersionName best;
  VersionName named;
  std::vector<VersionName> renamed;
  {
    const MutexLock lock(mutex_);
    if (naming_ || (summary_.best == named_ && renamed_.empty())) return {};
    naming_ = true;
    best = summary_.best;
    named = named_;
    renamed.swap(renamed_);
  }
  // The new one first: there is a best one at any time.
  Status status;
  if (best != named) {
    status = repository_.set_alias(best.model, kBestAlias, std::nullopt, best.number);
    if (status && !named.model.empty()) renamed.push_back(named);
    if (status) named = best;
    // Overtaken meanwhile, and retired.
    if (!status && status.error().code() == Code::not_found) status = {};
  }
  std::erase_if(renamed, [this, &status](const VersionName& version) {
    const Status removed = repository_.set_alias(version.model, kBestAlias, version.number, 0);
    if (removed || is_away(removed.error())) return removed.has_value();
    const Code code = removed.error().code();
    const bool is_gone = code == Code::not_found || code == Code::failed_precondition;
    if (!is_gone) status = removed;
    return is_gone;
  });
  const MutexLock lock(mutex_);
  naming_ = false;
  named_ = named;
  renamed_.insert(renamed_.end(), renamed.begin(), renamed.end());
  summary_.best_is_named = named_ == summary_.best;
  // Tried again in the next turn.
  return status || is_away(status.error()) ? Status() : status;
}

void Search::let_go(std::size_t most) {
  std::vector<Begun> pinned;
  {
    const MutexLock lock(mutex_);
    pinned = take(still_pinned_, most);
  }
  std::erase_if(pinned, [this](const Begun& begun) {
    const Status done = abandon(repository_, begun);
    return done || !is_away(done.error());  // Whoever does not know the pin does not hold it.
  });
  const MutexLock lock(mutex_);
  still_pinned_.insert(still_pinned_.end(), pinned.begin(), pinned.end());
}

// A put whose answer was lost may have been done. Nobody else has a model of that name.
void Search::drop_doubtful() {
  std::vector<std::string> models;
  {
    const MutexLock lock(mutex_);
    models.swap(doubtful_);
  }
  for (const std::string& model : models) {
    const auto number = repository_.latest(model);
    if (number && options_.retire) (void)repository_.retire({.model = model, .number = *number}, {});
  }
}

}  // namespace freshet::nas
