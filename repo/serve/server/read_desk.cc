// SPDX-License-Identifier: Apache-2.0
#include "repo/serve/server/read_desk.h"

#include <algorithm>
#include <utility>

#include "core/base/format.h"
#include "transport/protocol/publisher/leases.h"

namespace freshet::rpc {
namespace {

/// A segment's length is known to its reader; what is not there is found out when it is read.
constexpr std::uint64_t kPartBytesMax = std::uint64_t{1} << 42;

}  // namespace

Status ReadDesk::start(std::size_t readers) {
  FRESHET_ASSIGN(staging_, TouchedMemory::create(std::max(limits_.staging_bytes, 2 * limits_.block_bytes)));
  return readers_.start(readers);
}

void ReadDesk::begin_session(SessionId session, std::string_view key) {
  const MutexLock lock(mutex_);
  sessions_.try_emplace(session).first->second.key = key;
}

ReadDesk::Session ReadDesk::sum_of_key(const Session& session) const {
  if (session.key.empty()) return session;
  Session sum;
  for (const auto& [id, other] : sessions_) {
    if (other.key != session.key) continue;
    sum.leases += other.leases;
    sum.parts += other.parts;
    sum.staged += other.staged;
  }
  return sum;
}

std::optional<Error> ReadDesk::why_no_lease(const Session& session, std::size_t parts) const {
  const auto full = [](std::string what) { return Error(Code::out_of_space, std::move(what)); };
  if (session.leases >= limits_.leases_per_session_max) {
    return full(format("the session has {} leases, the most that one session may have", session.leases));
  }
  if (leases_.all().size() >= limits_.leases_max)
    return full(format("{} leases are given out already", leases_.all().size()));
  if (parts > limits_.parts_max - parts_) return full(format("the leases given out name {} ranges already", parts_));
  if (session.key.empty()) return std::nullopt;
  const Session sum = sum_of_key(session);
  if (sum.leases >= limits_.leases_per_key_max) {
    return full(format("{} leases are given out to this key, the most that one key may have", sum.leases));
  }
  if (sum.parts + parts > limits_.parts_max / 2) {
    return full(
        format("the leases of this key name {} ranges, and one key may have {}", sum.parts, limits_.parts_max / 2));
  }
  return std::nullopt;
}

void ReadDesk::end_session(SessionId session) {
  const MutexLock lock(mutex_);
  for (const LeaseId id : leases_.ids_of([&](const Lease& lease) { return lease.session == session; })) close(id);
  sessions_.erase(session);
}

Status ReadDesk::check(const Subject& subject) const {
  for (const Part& part : subject.parts) {
    if (part.bytes > kPartBytesMax || part.offset > kPartBytesMax) {
      return fail(Code::invalid_argument, "the request asks for more bytes than any tensor has");
    }
    if (subject.record == nullptr) continue;
    const VersionRecord& record = *subject.record;
    const auto tensors = record.manifest.architecture->tensors();
    if (part.tensor < tensors.size() && part.offset <= tensors[part.tensor].bytes() &&
        part.bytes <= tensors[part.tensor].bytes() - part.offset) {
      continue;
    }
    return fail(Code::invalid_argument, format("read {}: {} bytes from {} on are outside of its tensor {}",
                                               to_string(record.manifest.name), part.bytes, part.offset, part.tensor));
  }
  if (subject.record != nullptr && !subject.record->has_weights) {
    return fail(Code::failed_precondition, to_string(subject.record->manifest.name) + " has no weights");
  }
  return {};
}

Result<LeaseId> ReadDesk::lend(SessionId session, Subject subject, Time now) {
  FRESHET_TRY(check(subject));
  std::vector<SegmentName> segments;
  segments.reserve(subject.parts.size());
  for (const Part& part : subject.parts) {
    segments.push_back(subject.record == nullptr ? part.segment : subject.record->manifest.owners[part.tensor]);
  }
  FRESHET_ASSIGN(std::shared_ptr<const void> kept, repository_.keep_readable(segments));
  auto lease = std::make_shared<Lease>();
  lease->session = session;
  lease->subject = std::move(subject);
  lease->kept = std::move(kept);
  lease->until = now + limits_.lifetime;
  lease->moved = now;

  const MutexLock lock(mutex_);
  const auto owner = sessions_.find(session);
  if (owner == sessions_.end()) return fail(Code::unavailable, "the client's connection has ended");
  const std::size_t parts = lease->subject.parts.size();
  if (auto why = why_no_lease(owner->second, parts)) return fail(std::move(*why));
  const LeaseId id = protocol::keyed_word(seed_, ++leases_made_, session);
  ++owner->second.leases;
  owner->second.parts += parts;
  parts_ += parts;
  leases_.open(id, std::move(lease));
  return id;
}

Status ReadDesk::renew(SessionId session, LeaseId id, Time now) {
  const MutexLock lock(mutex_);
  FRESHET_ASSIGN(const auto lease, leases_.living(session, id, now));
  lease->until = now + limits_.lifetime;
  return {};
}

void ReadDesk::end(SessionId session, LeaseId id) {
  const MutexLock lock(mutex_);
  // One that ran out, too.
  if (leases_.living(session, id, Time{})) close(id);
}

void ReadDesk::close(LeaseId id) {
  const Lease& lease = *leases_.all().at(id);
  const auto owner = sessions_.find(lease.session);
  if (!lease.closed) parts_ -= lease.subject.parts.size();
  if (!lease.closed && owner != sessions_.end()) {
    --owner->second.leases;
    owner->second.parts -= lease.subject.parts.size();
  }
  leases_.close(id);
}

std::vector<SessionId> ReadDesk::on_tick(Time now) {
  std::vector<SessionId> to_cut;
  const MutexLock lock(mutex_);
  const auto is_stalled = [&](const Lease& lease) { return lease.staged != 0 && now - lease.moved > limits_.stall; };
  for (const LeaseId id : leases_.ids_of(is_stalled)) {
    Lease& lease = *leases_.all().at(id);
    to_cut.push_back(lease.session);
    lease.moved = now;  // Cutting takes a moment.
    close(id);
  }
  for (const LeaseId id : leases_.ids_of([&](const Lease& lease) { return lease.until < now; })) close(id);
  return to_cut;
}

ReadDesk::Stat ReadDesk::stat() const {
  const MutexLock lock(mutex_);
  Stat stat{.leases = 0, .fetches = 0, .staged_bytes = staged_};
  for (const auto& [id, lease] : leases_.all()) {
    stat.leases += lease->closed ? 0 : 1;
    stat.fetches += lease->readers;
  }
  return stat;
}

}  // namespace freshet::rpc
