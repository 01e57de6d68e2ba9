// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The lanes of one connection, as its client has them: a put or a read takes one and gives it back. Private to this
/// folder.

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/mutex.h"
#include "repo/serve/lane/lane_memory.h"

namespace freshet::rpc {

struct ClientLane {
  std::uint64_t id = 0;                      ///< As the server numbered it.
  std::shared_ptr<LaneMemory> ours;          ///< For puts.
  std::shared_ptr<const LaneMemory> theirs;  ///< For reads.
};

/// Any thread.
class LanePool {
 public:
  /// Puts, or reads, of one connection that go by lanes at the same time.
  static constexpr std::size_t kLanesMax = 4;

  std::optional<ClientLane> take() FRESHET_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    if (idle_.empty()) return std::nullopt;
    ClientLane lane = std::move(idle_.back());
    idle_.pop_back();
    return lane;
  }
  /// Whether another one may be made; it counts as made when the answer is yes.
  bool may_make() FRESHET_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    if (refused_ || lanes_ >= kLanesMax) return false;
    ++lanes_;
    return true;
  }
  void give_back(ClientLane lane) FRESHET_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    idle_.push_back(std::move(lane));
  }
  /// No more are to be made.
  void refuse() FRESHET_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    refused_ = true;
  }

 private:
  Mutex mutex_;
  std::vector<ClientLane> idle_ FRESHET_GUARDED_BY(mutex_);
  std::size_t lanes_ FRESHET_GUARDED_BY(mutex_) = 0;
  bool refused_ FRESHET_GUARDED_BY(mutex_) = false;
};

/// A lane in use. It goes back to its pool, which outlives it, unless the other side may still be at work in it.
class LaneLoan {
 public:
  LaneLoan(LanePool& pool, ClientLane lane) : pool_(&pool), lane_(std::move(lane)) {}
  LaneLoan(LaneLoan&& other) noexcept : pool_(std::exchange(other.pool_, nullptr)), lane_(std::move(other.lane_)) {}
  LaneLoan& operator=(LaneLoan&&) = delete;
  ~LaneLoan() {
    if (pool_ != nullptr) pool_->give_back(std::move(lane_));
  }
  const ClientLane& lane() const { return lane_; }
  /// It is not used again.
  void spoil() { pool_ = nullptr; }

 private:
  LanePool* pool_;
  ClientLane lane_;
};

}  // namespace freshet::rpc
