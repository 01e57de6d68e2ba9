// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Tasks that other threads give a loop's thread, in their order.

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/wake.h"

namespace freshet {

class LoopTasks {
 public:
  /// `wake` is the loop's, which polls and acknowledges it. At most `tasks_max` wait.
  explicit LoopTasks(const Wake& wake, std::size_t tasks_max = SIZE_MAX) : wake_(wake), tasks_max_(tasks_max) {}

  /// False when it was dropped: too many wait, or the loop takes no more. Any thread.
  bool post(std::function<void()> task) FRESHET_EXCLUDES(mutex_) {
    {
      const MutexLock lock(mutex_);
      if (closed_ || tasks_.size() >= tasks_max_) return false;
      tasks_.push_back(std::move(task));
    }
    wake_.wake();
    return true;
  }

  // The loop's thread.

  /// Runs the tasks that were posted so far.
  void run() FRESHET_EXCLUDES(mutex_) {
    for (const auto& task : take(/*last=*/false)) task();
  }
  /// Runs them, and takes no more from now on.
  void run_last() FRESHET_EXCLUDES(mutex_) {
    for (const auto& task : take(/*last=*/true)) task();
  }

 private:
  std::vector<std::function<void()>> take(bool last) FRESHET_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    closed_ = closed_ || last;
    return std::exchange(tasks_, {});
  }

  const Wake& wake_;
  const std::size_t tasks_max_;
  Mutex mutex_;
  std::vector<std::function<void()>> tasks_ FRESHET_GUARDED_BY(mutex_);
  bool closed_ FRESHET_GUARDED_BY(mutex_) = false;
};

}  // namespace freshet
