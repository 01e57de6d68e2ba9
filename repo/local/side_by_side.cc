// SPDX-License-Identifier: Apache-2.0
#include "repo/local/side_by_side.h"

#include <algorithm>
#include <atomic>
#include <stop_token>
#include <system_error>
#include <thread>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/interruption.h"
#include "core/base/mutex.h"

namespace freshet {
namespace {

struct Failure {
  Mutex mutex;
  std::size_t at FRESHET_GUARDED_BY(mutex) = 0;
  Status status FRESHET_GUARDED_BY(mutex);

  void add(std::size_t failed_at, Status failed) {
    const MutexLock lock(mutex);
    if (!status && at < failed_at) return;
    at = failed_at;
    status = std::move(failed);
  }
};

class Helpers {
 public:
  void begin_one() {
    const MutexLock lock(mutex_);
    ++running_;
  }
  void end_one() {
    const MutexLock lock(mutex_);
    --running_;
    ended_.notify_all();
  }
  /// Until all ended. Before, cancelled if this thread's Interruption wants it.
  Status wait() {
    const MutexLock lock(mutex_);
    while (running_ > 0) {
      ended_.wait_until(mutex_, Interruption::next_look(deadline_in(kHelpersLook)));
      mutex_.unlock();
      Status wanted = Interruption::check();
      mutex_.lock();
      if (!wanted) return wanted;
    }
    return {};
  }

 private:
  static constexpr Duration kHelpersLook = std::chrono::seconds(1);
  Mutex mutex_;
  CondVar ended_;
  std::size_t running_ FRESHET_GUARDED_BY(mutex_) = 0;
};

}  // namespace

Status run_side_by_side(std::size_t count, std::size_t threads, const std::function<Status(std::size_t at)>& work) {
  std::atomic<std::size_t> next{0};
  std::stop_source failed;
  Failure failure;
  Helpers helpers;
  const auto run = [&] {
    const StopInterrupts ends_early(failed.get_token());
    for (std::size_t at = next++; at < count && !failed.stop_requested(); at = next++) {
      Status status = work(at);
      // What another piece's failure interrupted tells nothing.
      if (status || (status.error().code() == Code::cancelled && failed.stop_requested())) continue;
      failure.add(at, std::move(status));
      failed.request_stop();
    }
  };
  {
    std::vector<std::jthread> threads_beside;
    try {
      for (std::size_t i = 1; i < std::min(threads, count); ++i) {
        helpers.begin_one();
        threads_beside.emplace_back([&] {
          run();
          helpers.end_one();
        });
      }
    } catch (const std::system_error&) {
      helpers.end_one();  // Fewer threads do the same work.
    }
    run();
    // Helpers cannot ask whether the call of this thread must end.
    if (Status wanted = helpers.wait(); !wanted) {
      failure.add(count, std::move(wanted));
      failed.request_stop();
    }
  }
  const MutexLock lock(failure.mutex);
  return std::move(failure.status);
}

}  // namespace freshet
