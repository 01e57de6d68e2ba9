// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Threads that do pieces of work while their owner makes the next pieces.

#include <cstddef>
#include <deque>
#include <functional>
#include <stop_token>
#include <thread>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/result.h"

namespace freshet::bucket {

/// One thread at a time owns a crew.
class Crew {
 public:
  /// At most `threads_max` pieces are under way. A thread starts when a piece needs it.
  explicit Crew(std::size_t threads_max) : threads_max_(threads_max) {}
  /// Interrupts the pieces that are under way (interruption.h), and leaves the others out.
  ~Crew();
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  /// Hands a piece over; waits while all threads work. After a piece failed: its error, and `work` is left out.
  Status add(std::function<Status()> work) FRESHET_EXCLUDES(mutex_);
  /// Waits for all pieces. The error of the piece that failed first; the others were interrupted then. Or cancelled,
  /// when this thread's Interruption wants it.
  Status finish() FRESHET_EXCLUDES(mutex_);

 private:
  void run() FRESHET_EXCLUDES(mutex_);
  void end_with(Status failure) FRESHET_REQUIRES(mutex_);
  /// Waits until at most so many pieces are not done.
  void wait(std::size_t pieces) FRESHET_REQUIRES(mutex_);

  const std::size_t threads_max_;
  std::stop_source stop_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<Status()>> waiting_ FRESHET_GUARDED_BY(mutex_);  ///< No more than there are threads.
  std::size_t not_done_ FRESHET_GUARDED_BY(mutex_) = 0;
  bool closing_ FRESHET_GUARDED_BY(mutex_) = false;
  Status status_ FRESHET_GUARDED_BY(mutex_);  ///< Of the piece that failed first.
  std::vector<std::jthread> threads_;         ///< Last, so that they end first.
};

}  // namespace freshet::bucket
