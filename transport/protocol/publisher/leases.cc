// SPDX-License-Identifier: Apache-2.0
#include "transport/protocol/publisher/leases.h"

#include <sodium.h>

#include <algorithm>
#include <array>

#include "core/base/check.h"

namespace freshet::protocol {

LeaseId Leases::open(SessionId session, VersionNumber number, Time now) {
  const HolderId holder = versions_.next_holder();
  const bool coming = versions_.find(number) == nullptr;
  LeaseId id = keyed_word(options_.token_seed, session, holder);
  while (leases_.contains(id)) id = keyed_word(options_.token_seed, id, holder);
  FRESHET_CHECK(coming ? number == versions_.coming() : versions_.hold(number, holder));
  leases_.emplace(
      id,
      Lease{.session = session, .number = number, .holder = coming ? HolderId{0} : holder, .since = now, .moved = now});
  out_.add(action::OpenLease{.lease = id, .session = session, .number = number, .coming = coming});
  return id;
}

void Leases::on_fetched(LeaseId lease, std::uint64_t bytes, Time now) {
  const auto entry = leases_.find(lease);
  if (entry == leases_.end()) return;
  entry->second.bytes += bytes;
  entry->second.moved = now;
}

void Leases::close(const std::vector<LeaseId>& leases, bool by_force) {
  const State wanted = by_force ? State::closing_by_force : State::closing;
  for (const LeaseId id : leases) {
    const auto entry = leases_.find(id);
    if (entry == leases_.end() || entry->second.state >= wanted) continue;
    entry->second.state = wanted;
    out_.add(action::CloseLease{.lease = id, .session = entry->second.session, .by_force = by_force});
  }
}

void Leases::on_closed(LeaseId lease) {
  const auto entry = leases_.find(lease);
  if (entry == leases_.end() || entry->second.state == State::open) return;
  if (entry->second.holder != 0) versions_.release(entry->second.number, entry->second.holder);
  leases_.erase(entry);
}

std::vector<LeaseId> Leases::those(const std::function<bool(const Lease&)>& are) const {
  std::vector<LeaseId> found;
  for (const auto& [id, lease] : leases_) {
    if (are(lease)) found.push_back(id);
  }
  return found;
}

std::vector<LeaseId> Leases::idle(Time now) const {
  return those([&](const Lease& lease) { return lease.holds_open() && now - lease.moved >= options_.lease_idle; });
}

std::vector<LeaseId> Leases::slow(Time now) const {
  return those([&](const Lease& lease) {
    return lease.holds_open() && lease.number != versions_.newest() && !versions_.is_kept(lease.number) &&
           is_too_slow(lease, now);
  });
}

/// By what came, not by what was asked for; and nobody makes a version last by fetching the same part again and again.
bool Leases::is_too_slow(const Lease& lease, Time now) const {
  if (lease.bytes == 0) return now - lease.since >= options_.lease_silence;
  std::uint64_t version_bytes = 0;
  for (const SegmentPlace& place : versions_.record_of(lease.number).version.places) version_bytes += place.bytes;
  const std::uint64_t counted = std::min(lease.bytes, 2 * version_bytes);
  const Duration spent = now - lease.since - options_.fetch_grace;
  if (spent <= Duration::zero()) return false;
  const auto seconds = static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::seconds>(spent).count());
  return counted / std::max<std::uint64_t>(options_.fetch_rate_min, 1) < seconds;
}

std::vector<LeaseId> Leases::of_coming(VersionNumber number) const {
  return those(
      [&](const Lease& lease) { return lease.number == number && lease.holder == 0 && lease.state == State::open; });
}

std::vector<LeaseId> Leases::of(SessionId session) const {
  return those([&](const Lease& lease) { return lease.session == session; });
}

bool Leases::name(VersionNumber number) const {
  return std::ranges::any_of(leases_, [&](const auto& lease) { return lease.second.number == number; });
}

std::set<VersionNumber> Leases::versions_of(const std::function<bool(SessionId)>& is_one) const {
  std::set<VersionNumber> numbers;
  for (const auto& [id, lease] : leases_) {
    if (lease.holds_open() && is_one(lease.session)) numbers.insert(lease.number);
  }
  return numbers;
}

Time Leases::next_tick() const {
  Time next = Time::max();
  for (const auto& [id, lease] : leases_) {
    if (lease.holds_open()) next = std::min(next, lease.moved + options_.lease_idle);
  }
  return next;
}

std::uint64_t keyed_word(std::uint64_t seed, std::uint64_t first, std::uint64_t second) {
  const std::array<std::uint64_t, 3> text{seed, first, second};
  std::uint64_t word = 0;
  std::array<unsigned char, crypto_generichash_BYTES_MIN> hash{};
  crypto_generichash(hash.data(), hash.size(), reinterpret_cast<const unsigned char*>(text.data()), sizeof text,
                     nullptr, 0);
  std::copy_n(hash.begin(), sizeof word, reinterpret_cast<unsigned char*>(&word));
  return word | 1;
}

}  // namespace freshet::protocol
