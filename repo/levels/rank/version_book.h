// SPDX-License-Identifier: Apache-2.0
#pragma once

/// This rank's book of the versions of this life: the levels that each reached, and the memory of its share. The book
/// also knows when the job ends: this ends all its waits.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <vector>

#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/base/result.h"
#include "repo/levels/level_board.h"
#include "repo/levels/rank/job.h"
#include "repo/levels/shards/share.h"

namespace freshet::levels {

/// Any thread.
class VersionBook {
 public:
  explicit VersionBook(const Job& job) : job_(job) {}
  VersionBook(const VersionBook&) = delete;
  VersionBook& operator=(const VersionBook&) = delete;

  /// The memory of the first shares. out_of_space.
  Status allocate() FRESHET_EXCLUDES(mutex_);

  // For the loop.
  /// A version begins; it is open at each level. The error that ended the job; cancelled.
  Status begin(VersionNumber number, std::uint64_t step, Time began) FRESHET_EXCLUDES(mutex_);
  /// A share that nobody uses; the caller is its one user. Null: `why` says why, after the wait that `when_behind`
  /// allows.
  std::shared_ptr<Share> free_share(std::optional<Error>& why) FRESHET_EXCLUDES(mutex_);
  /// The capture of `share` ended, and its version is in memory; if not `is_whole`, or if the version was forgotten
  /// meanwhile, the share is free again.
  void end_capture(const std::shared_ptr<Share>& share, bool is_whole) FRESHET_EXCLUDES(mutex_);
  /// With `wait`: returns when `is_there`, the job ended, or the thread was interrupted. With `skip`: after a pause at
  /// the latest. `is_there` is called with the book locked. False: it is not there; `why` says why if the job ended.
  bool wait_in_loop(const std::function<bool()>& is_there, std::optional<Error>& why) FRESHET_EXCLUDES(mutex_);

  // For the program.
  Result<bool> poll(VersionNumber version, Level level) const FRESHET_EXCLUDES(mutex_);
  Status wait(VersionNumber version, Level level, Duration at_most, const std::stop_token& stop) const
      FRESHET_EXCLUDES(mutex_);
  /// Until no version is open and `all_is_told`, which is called with the book locked.
  Status settle(const std::function<bool()>& all_is_told, Duration at_most, const std::stop_token& stop) const
      FRESHET_EXCLUDES(mutex_);

  // For the levels.
  bool knows(VersionNumber number) const FRESHET_EXCLUDES(mutex_);
  /// The share of a version that is in memory; it stays until the caller's pointer is gone. Null: it is not in memory.
  /// `to_write`: this rank's folder gets it, perhaps in vain.
  std::shared_ptr<const Share> borrow(const Version& version, bool to_write = false) FRESHET_EXCLUDES(mutex_);
  /// The versions in memory that all ranks captured, with their steps.
  std::vector<std::pair<Version, std::uint64_t>> in_memory() const FRESHET_EXCLUDES(mutex_);
  /// Versions that did not reach or fail each level yet.
  std::vector<VersionNumber> open_versions() const FRESHET_EXCLUDES(mutex_);
  /// Rank 0 said that a version reached or failed a level: shares that nobody needs are free at once, before this is
  /// recorded and told, so that the loop does not wait for records on a slow disk.
  void take_note(const LevelNote& note) FRESHET_EXCLUDES(mutex_);

  // For the teller.
  struct Untold {
    Time captured_at{};
    bool was_written = false;
    bool has_failed = false;  ///< At a level before.
  };
  /// Nothing: told already, or not of this life.
  std::optional<Untold> untold(VersionNumber number, Level level) const FRESHET_EXCLUDES(mutex_);
  /// Told: the version reached this level, or failed it.
  void mark(const LevelNote& note) FRESHET_EXCLUDES(mutex_);
  /// Something changed that `is_there` or `all_is_told` look at.
  void wake() const FRESHET_EXCLUDES(mutex_);

  void end(const Error& why) FRESHET_EXCLUDES(mutex_);
  void stop() FRESHET_EXCLUDES(mutex_);

 private:
  enum class State : std::uint8_t { open, reached, failed };
  struct Entry {
    std::uint64_t step = 0;
    Time captured_at{};
    std::shared_ptr<Share> share;  ///< While it is in memory.
    std::map<Level, State> levels;
    // As rank 0 said; `levels` follows when it was recorded and told, which may take a slow disk long.
    bool is_captured = false;    ///< By all ranks.
    bool needs_share = true;     ///< Until it reached or failed `local`.
    bool was_written = false;    ///< Its shard, by this rank, perhaps in vain.
    std::optional<Error> error;  ///< Of the first level that failed.
  };
  bool is_over() const FRESHET_REQUIRES(mutex_) { return over_.has_value() || stopped_; }
  Error why_over() const FRESHET_REQUIRES(mutex_);
  static bool is_open(const Entry& entry);
  bool may_take_share() const FRESHET_REQUIRES(mutex_);
  std::size_t shares_max() const;
  void let_go_of_shares() FRESHET_REQUIRES(mutex_);
  void give_back(Share& share) FRESHET_EXCLUDES(mutex_);

  const Job& job_;
  mutable Mutex mutex_;
  mutable CondVar changed_;
  std::vector<std::shared_ptr<Share>> shares_ FRESHET_GUARDED_BY(mutex_);
  std::map<VersionNumber, Entry> versions_ FRESHET_GUARDED_BY(mutex_);
  std::optional<Error> over_ FRESHET_GUARDED_BY(mutex_);
  bool stopped_ FRESHET_GUARDED_BY(mutex_) = false;
};

}  // namespace freshet::levels
