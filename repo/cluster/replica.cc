#include "repo/cluster/replica.h"

#include <algorithm>

#include "core/format.h"
#include "repo/cluster/placement.h"

namespace freshet::cluster {
namespace {

Digest digest_of_tags(const std::vector<Digest>& tags) { return digest_of(bytes_of(tags.data(), tags.size())); }

}  // namespace

void ReplicaIndex::apply(std::uint32_t provider, const FeedChange& change) {
  const MutexLock lock(mutex_);
  const auto known = told_.find(change.id);
  if (change.retired || change.graph == nullptr) {
    if (known != told_.end() && known->second.provider == provider) {
      index_.retire(change.id, 0);
      told_.erase(known);
    }
    index_.add_tombstone(change.id, change.ancestor);
    return;
  }
  if (known != told_.end()) {
    const Digest tags = digest_of_tags(change.tags);
    if (known->second.provider != provider) return;
    if (known->second.quality == change.quality && known->second.tags == tags) return;
    index_.restate(change.id, change.quality, change.tags, 0);
    known->second.quality = change.quality;
    known->second.tags = tags;
    return;
  }
  const Status inserted = index_.insert({.name = change.name,
                                         .id = change.id,
                                         .graph = change.graph,
                                         .quality = change.quality,
                                         .has_weights = change.has_weights,
                                         .commit = change.commit,
                                         .tags = change.tags,
                                         .ancestor = change.ancestor},
                                        0);
  if (!inserted) return;
  told_.emplace(change.id, Told{.provider = provider, .quality = change.quality, .tags = digest_of_tags(change.tags)});
}

void ReplicaIndex::drop(std::uint32_t provider) {
  std::vector<VersionId> all;
  {
    const MutexLock lock(mutex_);
    for (const auto& [id, told] : told_) {
      if (told.provider == provider) all.push_back(id);
    }
  }
  // One at a time, so that answers go on meanwhile.
  for (const VersionId& id : all) {
    const MutexLock lock(mutex_);
    index_.retire(id, 0);
    told_.erase(id);
  }
}

std::optional<std::uint32_t> ReplicaIndex::told_by(const VersionId& id) const {
  const MutexLock lock(mutex_);
  const auto known = told_.find(id);
  if (known == told_.end()) return std::nullopt;
  return known->second.provider;
}

std::size_t ReplicaIndex::size() const {
  const MutexLock lock(mutex_);
  return told_.size();
}

Replica::Provider& Replica::provider(const std::string& id) {
  std::unique_ptr<Provider>& known = providers_[id];
  if (known == nullptr) {
    known = std::make_unique<Provider>();
    known->sink = std::make_unique<Sink>(index_, static_cast<std::uint32_t>(names_.size()));
    names_.push_back(id);
  }
  return *known;
}

FeedSink& Replica::sink(const std::string& id) {
  const MutexLock lock(mutex_);
  return *provider(id).sink;
}

void Replica::add(const std::string& id) {
  const MutexLock lock(mutex_);
  provider(id).is_member = true;
}

void Replica::set_followed(const std::string& id, const FollowMachine::Followed& followed) {
  const MutexLock lock(mutex_);
  provider(id).followed = followed;
  progressed_.notify_all();
}

bool Replica::wait_for_need(const std::string& id, Time at) {
  const MutexLock lock(mutex_);
  Provider& one = provider(id);
  while (!stopped_ && !one.needed && one.wanted.wait_until(mutex_, at)) {
  }
  return !stopped_ && std::exchange(one.needed, false);
}

void Replica::stop() {
  const MutexLock lock(mutex_);
  stopped_ = true;
  for (const auto& [id, one] : providers_) one->wanted.notify_all();
  progressed_.notify_all();
}

bool Replica::is_stopped() const {
  const MutexLock lock(mutex_);
  return stopped_;
}

bool Replica::is_complete() const {
  const MutexLock lock(mutex_);
  return !providers_.empty() && std::ranges::all_of(providers_, [&](const auto& one) {
    return !one.second->is_member || FollowMachine::is_followed(one.second->followed, times_, clock_.now());
  });
}

const std::string* Replica::missing(const std::vector<ReplicaQuery::Need>& needs) const {
  for (const ReplicaQuery::Need& need : needs) {
    const auto known = providers_.find(need.provider);
    if (known == providers_.end() || !known->second->followed.reached(need.position)) return &need.provider;
  }
  return nullptr;
}

Status Replica::await(const std::vector<ReplicaQuery::Need>& needs, Time deadline) {
  if (missing(needs) == nullptr) return {};
  for (const ReplicaQuery::Need& need : needs) {
    const auto known = providers_.find(need.provider);
    if (known == providers_.end() || known->second->followed.reached(need.position)) continue;
    known->second->needed = true;
    known->second->wanted.notify_one();
  }
  for (bool in_time = true;;) {
    const std::string* const behind = missing(needs);
    if (behind == nullptr) return {};
    const auto known = providers_.find(*behind);
    const bool hopeless = known == providers_.end() || known->second->followed.failed;
    if (stopped_ || hopeless || !in_time) {
      return fail(Code::failed_precondition,
                  format("this provider has not heard of all that provider {} has told others", *behind));
    }
    in_time = progressed_.wait_until(mutex_, deadline);
  }
}

Result<ReplicaAnswer> Replica::match(const ReplicaQuery& query) {
  FRESHET_TRY(check(query.match));
  if (query.match.exclude_lineage || !query.match.pin_by.empty() || query.needs.size() > kProvidersMax) {
    return fail(Code::invalid_argument, "a match for all providers names no line, pins nothing, and needs few of them");
  }
  ReplicaAnswer answer;
  {
    const MutexLock lock(mutex_);
    const Time now = clock_.now();
    FRESHET_TRY(await(query.needs, now + std::clamp(query.wait, Duration::zero(), kWaitMax)));
    // Noted before the index is asked: what it answers is then as new as this at least.
    for (const auto& [id, one] : providers_) {
      if (!one->is_member) continue;
      if (FollowMachine::is_followed(one->followed, times_, clock_.now())) {
        answer.points.push_back({.provider = id, .position = one->followed.position, .commit = one->followed.commit});
      } else {
        answer.match.without.push_back(format(
            "provider {}: {}", id, one->followed.failed ? one->followed.failed->message() : "it is not followed yet"));
      }
    }
  }
  answer.match.top = index_.match(query.match, query.excluded).top;
  for (const FollowedPoint& point : answer.points) answer.match.as_of = std::max(answer.match.as_of, point.commit);
  std::vector<std::optional<std::uint32_t>> told;
  for (const MatchRow& row : answer.match.top) told.push_back(index_.told_by(row.id));
  const MutexLock lock(mutex_);
  for (const auto& number : told) answer.providers.push_back(number ? names_[*number] : "");
  return answer;
}

}  // namespace freshet::cluster
