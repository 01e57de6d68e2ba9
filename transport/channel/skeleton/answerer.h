// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Makes answers that take a while (deltas) beside the server's thread, which goes on sending to others and answering
/// their pings meanwhile.

#include <atomic>
#include <cstddef>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/wake.h"
#include "transport/channel/channel.h"

namespace freshet::channel {

class Answerer {
 public:
  /// One piece. Between submit() and `done` nobody else touches the job or its OpenFetch.
  struct Job {
    OpenFetch* open = nullptr;
    std::size_t piece = 0;
    Result<OpenFetch::Answer> answer = OpenFetch::Answer{};
    std::atomic<bool> done{false};
  };

  /// `wake` is woken when a job is done; it outlives this.
  explicit Answerer(const Wake& wake) : wake_(wake) {}
  /// Waits for the jobs that were begun; the others are done without an answer.
  ~Answerer() { stop(); }
  Answerer(const Answerer&) = delete;
  Answerer& operator=(const Answerer&) = delete;

  /// Its threads start with the first job. One thread at a time. A job that nobody else keeps any more is not begun: so
  /// there are as many jobs at most as open fetches, beside those that are being worked on.
  void submit(const std::shared_ptr<Job>& job);
  void stop();

 private:
  void run();
  std::shared_ptr<Job> next();

  const Wake& wake_;
  std::vector<std::thread> threads_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<std::weak_ptr<Job>> jobs_ FRESHET_GUARDED_BY(mutex_);
  bool stopping_ FRESHET_GUARDED_BY(mutex_) = false;
};

}  // namespace freshet::channel
