// SPDX-License-Identifier: Apache-2.0
#include "repo/local/side_by_side.h"

#include <algorithm>
#include <atomic>
#include <stop_token>
#include <system_error>
#include <thread>
#include <vector>

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

}  // namespace

Status run_side_by_side(std::size_t count, std::size_t threads, const std::function<Status(std::size_t at)>& work) {
  std::atomic<std::size_t> next{0};
  std::stop_source failed;
  Failure failure;
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
    std::vector<std::jthread> helpers;
    try {
      for (std::size_t i = 1; i < std::min(threads, count); ++i) helpers.emplace_back(run);
    } catch (const std::system_error&) {
      // Fewer threads do the same work.
    }
    run();
  }
  const MutexLock lock(failure.mutex);
  return std::move(failure.status);
}

}  // namespace freshet
