// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A few threads that work through a queue.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
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
  /// What was not begun is dropped; what was is waited for.
  ~Workers();
  /// unavailable when the system has no more threads.
  Status start(std::size_t threads);
  /// drop() finds it by its `id`, unless that is 0.
  void post(std::function<void()> work, std::uint64_t id = 0) FRESHET_EXCLUDES(mutex_);
  /// Takes a job away that was not begun. False when there is none.
  bool drop(std::uint64_t id) FRESHET_EXCLUDES(mutex_);
  void stop() FRESHET_EXCLUDES(mutex_);

 private:
  struct Job {
    std::uint64_t id = 0;
    std::function<void()> work;
  };
  void run() FRESHET_EXCLUDES(mutex_);

  Mutex mutex_;
  CondVar posted_;
  std::deque<Job> jobs_ FRESHET_GUARDED_BY(mutex_);
  bool stopping_ FRESHET_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace freshet::rpc
