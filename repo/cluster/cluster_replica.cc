/// One provider's answer for all, from what it follows of the others (repo/cluster/replica.h). Whatever keeps it from
/// being complete and of all that was seen here makes the client ask everybody instead.

#include <algorithm>

#include "repo/cluster/cluster_impl.h"

namespace freshet {
namespace {

constexpr int kReplicaTriesMax = 16;
/// For a provider to hear of what was seen here.
constexpr Duration kWait = std::chrono::milliseconds(50);
/// Nobody is asked to answer for all so soon after one could not.
constexpr Duration kAskAllFor = std::chrono::milliseconds(250);

MemberPointer member_named(const ClusterView& now, const std::string& provider) {
  const std::size_t at = now.placement.index_of(provider);
  return at == now.members.size() ? nullptr : now.members[at];
}

bool covers(const ReplicaAnswer& answer, const ClusterView& now) {
  return answer.match.without.empty() && std::ranges::all_of(now.members, [&](const MemberPointer& member) {
           return std::ranges::find(answer.points, member->provider().id, &FollowedPoint::provider) !=
                  answer.points.end();
         });
}

}  // namespace

Result<VersionId> ClusterRepository::Impl::id_of(const VersionName& name) const {
  FRESHET_ASSIGN(const Located at, locate(name));
  {
    const MutexLock lock(mutex_);
    if (const auto known = names_.find(at.name); known != names_.end() && known->second.id) return *known->second.id;
  }
  FRESHET_ASSIGN(const Fetched fetched, fetch(at.name));
  return fetched.record.manifest.id;
}

std::optional<ReplicaQuery> ClusterRepository::Impl::replica_query(const ClusterView& now,
                                                                   const MatchQuery& query) const {
  ReplicaQuery asked{.match = query, .wait = kWait};
  asked.match.exclude_lineage.reset();
  asked.match.pin_by.clear();
  asked.match.one_for_all = false;
  if (query.exclude_lineage) {
    // One that was retired has its line all the same, which asking all of them finds.
    const Result<VersionId> id = id_of(*query.exclude_lineage);
    if (!id) return std::nullopt;
    asked.excluded = *id;
  }
  for (const MemberPointer& member : now.members) {
    const std::optional<FeedPosition> seen = member->seen()->position();
    if (!seen) continue;
    if (seen->life == 0) return std::nullopt;
    asked.needs.push_back({.provider = member->provider().id, .position = *seen});
  }
  return asked;
}

Result<std::optional<ReplicaAnswer>> ClusterRepository::Impl::ask_one(const ClusterView& now, const ReplicaQuery& query,
                                                                      std::string& answered_by) const {
  const MemberPointer& one = now.members[one_ % now.members.size()];
  const std::uint64_t asked = feed_tick();
  Result<ReplicaAnswer> answer = one->ask([&](Repository& at) { return at.match_for_all(query); });
  if (!answer && answer.error().code() == Code::invalid_argument) return fail(std::move(answer).error());
  if (!answer || !covers(*answer, now)) {
    ++one_;
    all_until_ = system_clock().now() + kAskAllFor;
    return std::optional<ReplicaAnswer>();
  }
  const std::uint64_t heard = feed_tick();
  for (const FollowedPoint& point : answer->points) {
    const MemberPointer member = member_named(now, point.provider);
    if (member != nullptr) member->seen()->note({.position = point.position, .asked = asked, .heard = heard});
  }
  answered_by = one->provider().id;
  return std::optional(*std::move(answer));
}

Result<std::optional<MatchAnswer>> ClusterRepository::Impl::match_by_one(const MatchQuery& query) const {
  const std::optional<MatchAnswer> ask_all;
  for (int tries = 0; tries < kReplicaTriesMax; ++tries) {
    if (system_clock().now() < all_until_.load()) return ask_all;
    const std::shared_ptr<const ClusterView> now = view();
    // Anew each time: what a pin was refused for is among what was seen.
    const std::optional<ReplicaQuery> asked = replica_query(*now, query);
    if (!asked) return ask_all;
    MatchAnswer answer;
    FRESHET_ASSIGN(std::optional<ReplicaAnswer> replica, ask_one(*now, *asked, answer.answered_by));
    if (!replica) return ask_all;

    MemberPointer best;
    for (std::size_t i = 0; i < replica->match.top.size(); ++i) {
      const MatchRow& row = replica->match.top[i];
      const MemberPointer home = member_named(*now, replica->providers[i]);
      if (home != nullptr) learn(row.version, row.id, home);
      if (i == 0) best = home;
    }
    answer.top = std::move(replica->match.top);
    answer.as_of = replica->match.as_of;
    for (const FollowedPoint& point : replica->points) answer.providers.push_back({point.provider, point.commit});
    if (query.pin_by.empty() || answer.top.empty()) return std::optional(std::move(answer));
    if (best == nullptr) return ask_all;

    FRESHET_ASSIGN(const PinTerms terms, terms_of(query.pin_terms));
    const Status pinned =
        best->ask([&](Repository& at) { return at.pin(answer.top.front().version, query.pin_by, terms); });
    if (pinned) return std::optional(std::move(answer));
    if (is_away(pinned.error())) return ask_all;
    if (pinned.error().code() != Code::not_found) return fail(pinned.error());
  }
  return ask_all;
}

}  // namespace freshet
