// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The lanes of a repository's server: those of its clients, which it reads, and those that it made for them to read.
/// A lane belongs to a session and goes with it. Private to this folder.

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <set>

#include "core/base/mutex.h"
#include "core/base/result.h"
#include "repo/serve/lane/lane_memory.h"
#include "repo/serve/lane/lane_stream.h"
#include "transport/protocol/messages.h"

namespace freshet::rpc {

using LaneId = std::uint64_t;  ///< Never 0.

/// Any thread.
class LaneDesk {
 public:
  struct Limits {
    std::uint64_t bytes_max = std::uint64_t{1} << 30;  ///< Of all lanes together, whoever made them.
    std::size_t lanes_per_session_max = 8;
  };
  /// `is_offered`: whether there are lanes at all.
  explicit LaneDesk(bool is_offered) : LaneDesk(is_offered, Limits{}) {}
  LaneDesk(bool is_offered, Limits limits) : is_offered_(is_offered), limits_(limits) {}

  void begin_session(protocol::SessionId session) FRESHET_EXCLUDES(mutex_);
  void end_session(protocol::SessionId session) FRESHET_EXCLUDES(mutex_);

  /// A client's, for its puts. unsupported where none are offered, out_of_space past the limits, unavailable when the
  /// session has ended, and what LaneMemory::open() answers.
  Result<LaneId> take_in(protocol::SessionId session, const LanePlace& place) FRESHET_EXCLUDES(mutex_);
  /// One for the client's reads; errors as take_in().
  struct Made {
    LaneId lane = 0;
    LanePlace place;
  };
  Result<Made> make(protocol::SessionId session, std::uint64_t bytes) FRESHET_EXCLUDES(mutex_);

  /// For the next put of the session; null when it has no such lane, or another put is in it.
  std::shared_ptr<LaneStream> begin_put(protocol::SessionId session, LaneId lane) FRESHET_EXCLUDES(mutex_);
  /// One that was made; not_found.
  Result<std::shared_ptr<LaneMemory>> made(protocol::SessionId session, LaneId lane) const FRESHET_EXCLUDES(mutex_);

  /// Ends every put that is in a lane, and lets none begin.
  void close() FRESHET_EXCLUDES(mutex_);

  std::uint64_t bytes() const FRESHET_EXCLUDES(mutex_);
  /// Payloads that came or went by lanes.
  void note_moved(std::uint64_t bytes) { moved_ += bytes; }
  std::uint64_t moved() const { return moved_; }

 private:
  struct Entry {
    protocol::SessionId session = 0;
    std::uint64_t bytes = 0;
    std::shared_ptr<const LaneMemory> theirs;
    std::shared_ptr<LaneMemory> ours;
    std::weak_ptr<LaneStream> stream;
  };
  /// Counted from here on; its memory comes later.
  Result<LaneId> reserve(protocol::SessionId session, std::uint64_t bytes) FRESHET_EXCLUDES(mutex_);
  void forget(LaneId lane) FRESHET_EXCLUDES(mutex_);

  const bool is_offered_;
  const Limits limits_;
  std::atomic<std::uint64_t> moved_{0};
  mutable Mutex mutex_;
  LaneId made_ FRESHET_GUARDED_BY(mutex_) = 0;
  bool closed_ FRESHET_GUARDED_BY(mutex_) = false;
  std::uint64_t bytes_ FRESHET_GUARDED_BY(mutex_) = 0;
  std::set<protocol::SessionId> sessions_ FRESHET_GUARDED_BY(mutex_);
  std::map<LaneId, Entry> lanes_ FRESHET_GUARDED_BY(mutex_);
};

}  // namespace freshet::rpc
