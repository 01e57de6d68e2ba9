// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A few threads that work through what several owners want, by turns: an owner's jobs in their order, and nobody's
/// thousand jobs before another's first.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/result.h"

namespace freshet::rpc {

/// Any thread. The queue has no limit of its own: whoever fills it has one (ServerLimits::calls_max), and takes jobs
/// away for which nobody waits any more.
class Workers {
 public:
  Workers() = default;
  /// Jobs that have not begun are dropped; the end waits for the others.
  ~Workers();
  /// At most `of_one_owner` of the threads (0: all) work for one owner at a time. unavailable when the system has no
  /// more threads.
  Status start(std::size_t threads, std::size_t of_one_owner = 0);
  /// drop() finds it by its `id`, unless that is 0.
  void post(std::function<void()> work, std::uint64_t id = 0, const std::string& owner = {}) FRESHET_EXCLUDES(mutex_);
  /// Takes a job away that was not begun. False when there is none.
  bool drop(std::uint64_t id) FRESHET_EXCLUDES(mutex_);
  void stop() FRESHET_EXCLUDES(mutex_);

 private:
  struct Job {
    std::uint64_t id = 0;
    std::function<void()> work;
  };
  struct Line {
    std::deque<Job> jobs;
    std::size_t running = 0;
  };
  using Lines = std::map<std::string, Line>;
  void run() FRESHET_EXCLUDES(mutex_);
  /// The owner whose turn it is; end() when no job may begin.
  Lines::iterator next() FRESHET_REQUIRES(mutex_);
  /// Waits for a job. False when there is nothing more to do.
  bool take(Job& job, std::string& owner) FRESHET_EXCLUDES(mutex_);
  void end(const std::string& owner) FRESHET_EXCLUDES(mutex_);

  Mutex mutex_;
  CondVar posted_;
  Lines lines_ FRESHET_GUARDED_BY(mutex_);       ///< By owner; each has jobs, or one that runs.
  std::string last_ FRESHET_GUARDED_BY(mutex_);  ///< Whose job was begun last.
  std::size_t of_one_owner_ = 0;                 ///< Constant once it is started.
  bool stopping_ FRESHET_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace freshet::rpc
