// SPDX-License-Identifier: Apache-2.0
#include "transport/protocol/publisher/leases.h"

#include <sodium.h>

#include <algorithm>
#include <array>
#include <utility>

#include "core/base/check.h"

namespace freshet::protocol {

LeaseId Leases::open(SessionId session, VersionNumber number, HolderId holder, HeldVersions& versions, Time now) {
  LeaseId id = keyed_word(seed_, session, holder);
  while (leases_.contains(id)) id = keyed_word(seed_, id, holder);
  FRESHET_CHECK(versions.hold(number, holder));
  leases_.emplace(id, Lease{.session = session, .number = number, .holder = holder, .since = now, .moved = now});
  return id;
}

LeaseId Leases::open_coming(SessionId session, VersionNumber number, HolderId serial, Time now) {
  LeaseId id = keyed_word(seed_, session, serial);
  while (leases_.contains(id)) id = keyed_word(seed_, id, serial);
  leases_.emplace(id, Lease{.session = session, .number = number, .since = now, .moved = now});
  return id;
}

void Leases::on_fetched(LeaseId lease, std::uint64_t bytes, Time now) {
  const auto entry = leases_.find(lease);
  if (entry == leases_.end()) return;
  entry->second.bytes += bytes;
  entry->second.moved = now;
}

std::vector<Leases::Course> Leases::courses() const {
  std::vector<Course> found;
  for (const auto& [id, lease] : leases_) {
    if (lease.state != State::open || lease.holder == 0) continue;
    found.push_back({.lease = id,
                     .session = lease.session,
                     .number = lease.number,
                     .since = lease.since,
                     .moved = lease.moved,
                     .bytes = lease.bytes});
  }
  std::ranges::sort(found, {}, [](const Course& course) { return std::pair(course.number, course.lease); });
  return found;
}

std::vector<LeaseId> Leases::of_coming(VersionNumber number) const {
  std::vector<LeaseId> found;
  for (const auto& [id, lease] : leases_) {
    if (lease.number == number && lease.holder == 0 && lease.state == State::open) found.push_back(id);
  }
  return found;
}

bool Leases::close(LeaseId lease, bool by_force) {
  const auto entry = leases_.find(lease);
  if (entry == leases_.end()) return false;
  const State wanted = by_force ? State::closing_by_force : State::closing;
  if (entry->second.state >= wanted) return false;
  entry->second.state = wanted;
  return true;
}

bool Leases::end(LeaseId lease, HeldVersions& versions) {
  const auto entry = leases_.find(lease);
  if (entry == leases_.end() || entry->second.state == State::open) return false;
  if (entry->second.holder != 0) versions.release(entry->second.number, entry->second.holder);
  leases_.erase(entry);
  return true;
}

std::vector<LeaseId> Leases::of(SessionId session) const {
  std::vector<LeaseId> found;
  for (const auto& [id, lease] : leases_) {
    if (lease.session == session) found.push_back(id);
  }
  return found;
}

SessionId Leases::session_of(LeaseId lease) const { return leases_.at(lease).session; }

bool Leases::name(VersionNumber number) const {
  return std::any_of(leases_.begin(), leases_.end(), [&](const auto& lease) { return lease.second.number == number; });
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
