// SPDX-License-Identifier: Apache-2.0
#include "repo/serve/server/lane_desk.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/base/format.h"

namespace freshet::rpc {

using protocol::SessionId;

void LaneDesk::begin_session(SessionId session) {
  const MutexLock lock(mutex_);
  sessions_.insert(session);
}

void LaneDesk::end_session(SessionId session) {
  // Unmapped when the lock is not held any more.
  std::vector<Entry> ended;
  const MutexLock lock(mutex_);
  sessions_.erase(session);
  for (auto at = lanes_.begin(); at != lanes_.end();) {
    const auto next = std::next(at);
    if (at->second.session == session) {
      bytes_ -= at->second.bytes;
      ended.push_back(std::move(at->second));
      lanes_.erase(at);
    }
    at = next;
  }
}

Result<LaneId> LaneDesk::reserve(SessionId session, std::uint64_t bytes) {
  if (!is_offered_) return fail(Code::unsupported, "this server has no lanes");
  const MutexLock lock(mutex_);
  if (!sessions_.contains(session)) return fail(Code::unavailable, "its connection has ended");
  const auto count = std::ranges::count_if(lanes_, [&](const auto& lane) { return lane.second.session == session; });
  if (static_cast<std::size_t>(count) >= limits_.lanes_per_session_max || bytes > limits_.bytes_max - bytes_) {
    return fail(Code::out_of_space, format("lanes have {} bytes of this server already", bytes_));
  }
  bytes_ += bytes;
  lanes_.emplace(++made_, Entry{.session = session, .bytes = bytes, .theirs = {}, .ours = {}, .stream = {}});
  return made_;
}

void LaneDesk::forget(LaneId lane) {
  const MutexLock lock(mutex_);
  const auto at = lanes_.find(lane);
  if (at == lanes_.end()) return;
  bytes_ -= at->second.bytes;
  lanes_.erase(at);
}

Result<LaneId> LaneDesk::take_in(SessionId session, const LanePlace& place) {
  if (place.bytes > kLaneBytesMax) return fail(Code::invalid_argument, "a lane is too long");
  FRESHET_ASSIGN(const LaneId lane, reserve(session, place.bytes));
  auto opened = LaneMemory::open(place);
  if (!opened) {
    forget(lane);
    return fail(std::move(opened).error().with_context("map the client's lane"));
  }
  const MutexLock lock(mutex_);
  const auto at = lanes_.find(lane);
  if (at == lanes_.end()) return fail(Code::unavailable, "its connection has ended");
  at->second.theirs = std::move(*opened);
  return lane;
}

Result<LaneDesk::Made> LaneDesk::make(SessionId session, std::uint64_t bytes) {
  if (bytes > kLaneBytesMax) return fail(Code::invalid_argument, "a lane is too long");
  FRESHET_ASSIGN(const LaneId lane, reserve(session, bytes));
  auto created = LaneMemory::create(bytes);
  if (!created) {
    forget(lane);
    return fail(std::move(created).error().with_context("make a lane"));
  }
  const Made made{.lane = lane, .place = (*created)->place()};
  const MutexLock lock(mutex_);
  const auto at = lanes_.find(lane);
  if (at == lanes_.end()) return fail(Code::unavailable, "its connection has ended");
  at->second.ours = std::move(*created);
  return made;
}

std::shared_ptr<LaneStream> LaneDesk::begin_put(SessionId session, LaneId lane) {
  const MutexLock lock(mutex_);
  const auto at = lanes_.find(lane);
  if (closed_ || at == lanes_.end() || at->second.session != session || at->second.theirs == nullptr) return nullptr;
  Entry& entry = at->second;
  if (!entry.stream.expired()) return nullptr;
  auto stream = std::make_shared<LaneStream>(entry.theirs->memory(), entry.theirs);
  entry.stream = stream;
  return stream;
}

Result<std::shared_ptr<LaneMemory>> LaneDesk::made(SessionId session, LaneId lane) const {
  const MutexLock lock(mutex_);
  const auto at = lanes_.find(lane);
  if (at == lanes_.end() || at->second.session != session || at->second.ours == nullptr) {
    return fail(Code::not_found, "this lane does not exist");
  }
  return at->second.ours;
}

void LaneDesk::close() {
  const MutexLock lock(mutex_);
  closed_ = true;
  for (auto& [id, lane] : lanes_) {
    if (const auto stream = lane.stream.lock()) stream->cut();
  }
}

std::uint64_t LaneDesk::bytes() const {
  const MutexLock lock(mutex_);
  return bytes_;
}

}  // namespace freshet::rpc
