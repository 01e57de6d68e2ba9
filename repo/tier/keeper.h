// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The keeper: copies what programs opened, and what was asked for ahead, into the tiers. One process has it for all
/// programs of the host that use these tiers, so its threads, its memory and its errors are none of theirs.
///
/// Each file has one copier at a time. A request comes from whoever can write to the socket, so it is a path and
/// nothing else: the keeper opens it, looks what it is, and copies a regular file below a source.
///
/// Any thread. Queues are limited: what programs ask for is dropped when its queue is full (they ask again at their
/// next open), what is fetched ahead waits for room.

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/clock.h"
#include "core/file_descriptor.h"
#include "core/mutex.h"
#include "core/result.h"
#include "repo/tier/board.h"
#include "repo/tier/config.h"
#include "repo/tier/tier_folder.h"

namespace freshet::tier {

class Keeper {
 public:
  /// Locks the tiers, removes what earlier keepers left unfinished, and takes stock. failed_precondition when another
  /// keeper has them. A tier that does not work is off, and says why on the board. `on_idle` is called by a thread of
  /// the keeper's when nothing is left to do.
  static Result<std::unique_ptr<Keeper>> open(const Config& config, Board& board, std::function<void()> on_idle);
  ~Keeper();

  /// A program opened that file at the source.
  void ask(std::string path);
  /// Copies files and folders in order. out_of_space when too many wait already.
  Status prefetch(std::string path);
  /// Whether nothing waits and nothing is being copied.
  bool is_idle() const;
  /// A copy was removed by somebody else.
  void forget(const Identity& identity);
  /// Tries tiers that are off.
  void try_again();

 private:
  struct Held {
    Identity identity;
    std::uint32_t tier = 0;
  };

  Keeper(const Config& config, Board& board, std::function<void()> on_idle);

  Status take(std::uint32_t tier);
  void turn_off(std::uint32_t tier, const std::string& reason) FRESHET_REQUIRES(mutex_);
  void publish_books() FRESHET_REQUIRES(mutex_);
  void tell_change();

  void work();
  void walk();
  bool next(std::string& path);
  bool is_idle_now() const FRESHET_REQUIRES(mutex_);
  /// What is to be done with a file that was opened: copy it, or nothing.
  void handle(const std::string& path);
  void copy(const OpenSource& source);
  /// A tier with room for it, now reserved; kTiersMax when there is none.
  std::uint32_t reserve(const Identity& identity, std::set<std::uint32_t>& tried);
  void settle_copy(const OpenSource& source, std::uint32_t tier, const CopyEnd& end);
  /// Strikes an older copy of the file off the books; its path, "" when there was none.
  std::string release_held(std::uint64_t key);
  void push_ahead(std::string path);
  /// Looks at the file again after that time. A file that stays young is given up; its next open asks again.
  void defer(const OpenSource& source, Duration by) FRESHET_EXCLUDES(mutex_);

  const Config config_;
  Board& board_;
  const std::function<void()> on_idle_;
  std::vector<FileDescriptor> locks_;

  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<std::string> asked_ FRESHET_GUARDED_BY(mutex_);
  std::deque<std::string> ahead_ FRESHET_GUARDED_BY(mutex_);
  std::deque<std::string> roots_ FRESHET_GUARDED_BY(mutex_);
  std::multimap<Time, std::string> later_ FRESHET_GUARDED_BY(mutex_);
  struct Deferred {
    int times = 0;
    bool waits = false;  ///< It stands in later_.
  };
  /// Files that were too young for a copy, by path.
  std::unordered_map<std::string, Deferred> deferred_ FRESHET_GUARDED_BY(mutex_);
  std::unordered_map<std::uint64_t, Held> held_ FRESHET_GUARDED_BY(mutex_);
  std::unordered_set<std::uint64_t> copying_ FRESHET_GUARDED_BY(mutex_);
  std::vector<std::uint64_t> used_ FRESHET_GUARDED_BY(mutex_);
  std::vector<std::uint64_t> files_ FRESHET_GUARDED_BY(mutex_);
  std::vector<bool> off_ FRESHET_GUARDED_BY(mutex_);
  std::size_t active_ FRESHET_GUARDED_BY(mutex_) = 0;
  bool walking_ FRESHET_GUARDED_BY(mutex_) = false;
  bool is_full_ FRESHET_GUARDED_BY(mutex_) = false;

  std::atomic<bool> stop_ = false;
  std::atomic<std::uint64_t> aside_ = 0;
  std::vector<std::thread> threads_;
};

}  // namespace freshet::tier
