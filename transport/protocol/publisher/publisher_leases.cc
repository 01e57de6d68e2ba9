// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <set>

#include "core/base/check.h"
#include "core/base/format.h"
#include "transport/protocol/publisher/publisher_machine.h"

// Sessions that fetch: what they are offered, the leases they get, and when those end.

namespace freshet::protocol {

std::uint32_t PublisherMachine::channels_offered() const {
  std::uint32_t kinds = 0;
  for (const ChannelOffer& offer : options_.channels) kinds |= bit(offer.kind);
  return kinds & ~bit(ChannelKind::shm);
}

bool PublisherMachine::can_fetch(const Hello& hello) const { return (hello.channels & channels_offered()) != 0; }

std::uint32_t PublisherMachine::lease_ms() const {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(options_.lease_silence).count();
  return static_cast<std::uint32_t>(std::clamp<std::int64_t>(ms, 1, std::numeric_limits<std::uint32_t>::max()));
}

std::optional<Error> PublisherMachine::why_not_readable(const PublisherSession& session, const Want& want) const {
  if (want.channel == ChannelKind::shm) {
    if (session.door_open) return std::nullopt;
    return Error(Code::failed_precondition, "the session's door is not open");
  }
  if ((session.hello().channels & channels_offered() & bit(want.channel)) == 0) {
    return Error(Code::failed_precondition,
                 format("channel {} is not one that we have in common", to_string(want.channel)));
  }
  return std::nullopt;
}

std::optional<Error> PublisherMachine::why_no_lease(const PublisherSession& session, VersionNumber number) const {
  if (session.lease_of(number) != 0) return std::nullopt;
  // Those that are closing count too: they hold memory until the last of their bytes was sent.
  const std::size_t leases = leases_.of(session.hello().session).size();
  if (leases >= options_.leases_per_session_max) {
    return Error(Code::out_of_space,
                 format("the session has {} leases, the most that one session may have: let versions go", leases));
  }
  if (session.key().empty()) return std::nullopt;
  std::set<VersionNumber> leased;
  for (const Leases::Course& course : leases_.courses()) {
    const auto owner = sessions_.find(course.session);
    if (owner != sessions_.end() && owner->second.key() == session.key()) leased.insert(course.number);
  }
  if (leased.contains(number) || leased.size() < options_.leased_versions_per_key_max) return std::nullopt;
  return Error(Code::out_of_space,
               format("the sessions of this key have leases on {} versions, the most that one key may have: let "
                      "versions go",
                      leased.size()));
}

/// By what came, not by what was asked for; and nobody makes a version last by fetching the same part again and again.
bool PublisherMachine::is_too_slow(const Leases::Course& course, Time now) const {
  if (course.bytes == 0) return now - course.since >= options_.lease_silence;
  std::uint64_t version_bytes = 0;
  for (const SegmentPlace& place : record_of(course.number).version.places) version_bytes += place.bytes;
  const std::uint64_t counted = std::min(course.bytes, 2 * version_bytes);
  const Duration spent = now - course.since - options_.fetch_grace;
  if (spent <= Duration::zero()) return false;
  const auto seconds = static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::seconds>(spent).count());
  return counted / std::max<std::uint64_t>(options_.fetch_rate_min, 1) < seconds;
}

void PublisherMachine::end_idle_leases(Time now) {
  for (const Leases::Course& course : leases_.courses()) {
    if (now - course.moved < options_.lease_idle) continue;
    sessions_.at(course.session).drop_lease(course.lease);
    close_leases({course.lease}, /*by_force=*/false);
  }
}

void PublisherMachine::end_slow_leases(Time now) {
  for (const Leases::Course& course : leases_.courses()) {
    if (course.number == versions_.newest() || versions_.is_kept(course.number)) continue;
    if (!is_too_slow(course, now)) continue;
    sessions_.at(course.session).drop_lease(course.lease);
    // Whoever takes nothing of what it asked for would else keep the memory.
    close_leases({course.lease}, /*by_force=*/true);
  }
}

std::uint64_t PublisherMachine::grant_by_lease(PublisherSession& session, VersionNumber number, Time now) {
  LeaseId lease = session.lease_of(number);
  const SessionId id = session.hello().session;
  if (lease == 0 && versions_.find(number) == nullptr) {
    lease = leases_.open_coming(id, number, /*serial=*/2 * ++last_serial_, now);
    actions_.emplace_back(action::OpenLease{.lease = lease, .session = id, .number = number, .coming = true});
  } else if (lease == 0) {
    lease = leases_.open(id, number, /*holder=*/2 * ++last_serial_, versions_, now);
    actions_.emplace_back(action::OpenLease{.lease = lease, .session = id, .number = number});
  }
  return session.grant(number, lease);
}

bool PublisherMachine::is_coming(VersionNumber number) const {
  return coming_ && coming_->version.manifest->name.number == number;
}

bool PublisherMachine::may_have_coming(const Want& want, VersionNumber number) const {
  return is_coming(number) && want.channel != ChannelKind::shm;
}

const HeldVersions::Record& PublisherMachine::record_of(VersionNumber number) const {
  const HeldVersions::Record* const record = versions_.find(number);
  FRESHET_CHECK(record != nullptr || is_coming(number));
  return record != nullptr ? *record : *coming_;
}

void PublisherMachine::on_coming(CommittedVersion version, Time now) {
  FRESHET_CHECK(version.manifest != nullptr && version.manifest->name.number > versions_.newest());
  if (coming_) on_not_coming(coming_->version.manifest->name.number, now);
  arrived_ = true;
  coming_ = HeldVersions::Record{.version = std::move(version), .announced_ns = now.time_since_epoch().count()};
  announced_turn_ = 0;  // Whoever asked for it too early asks again.
  settle(now);
}

void PublisherMachine::on_not_coming(VersionNumber number, Time now) {
  if (!is_coming(number)) return;
  coming_.reset();
  const std::vector<LeaseId> leases = leases_.of_coming(number);
  for (const LeaseId lease : leases) sessions_.at(leases_.session_of(lease)).drop_lease(lease);
  close_leases(leases, /*by_force=*/false);
  settle(now);
}

void PublisherMachine::close_leases(const std::vector<LeaseId>& leases, bool by_force) {
  for (const LeaseId lease : leases) {
    if (!leases_.close(lease, by_force)) continue;
    actions_.emplace_back(
        action::CloseLease{.lease = lease, .session = leases_.session_of(lease), .by_force = by_force});
  }
}

void PublisherMachine::on_lease_closed(LeaseId lease, Time) { leases_.end(lease, versions_); }

Duration PublisherMachine::patience(const PublisherSession& session) const {
  const bool remote = session.can_fetch && (!session.door_open || session.has_leases());
  if (remote) return std::max(options_.lease_silence, options_.silent_after);
  return session.door_open ? Duration::max() : options_.silent_after;
}

void PublisherMachine::expire(SessionId id) {
  PublisherSession& session = sessions_.at(id);
  if (!session.door_open) return end_session(id);
  session.drop_leases();
  close_leases(leases_.of(id), /*by_force=*/true);
}

}  // namespace freshet::protocol
