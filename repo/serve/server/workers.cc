// SPDX-License-Identifier: Apache-2.0
#include "repo/serve/server/workers.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "core/base/format.h"

namespace freshet::rpc {

Workers::~Workers() { stop(); }

Status Workers::start(std::size_t threads) {
  try {
    for (std::size_t i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
  } catch (const std::system_error& error) {
    stop();
    return fail(Code::unavailable, format("start a server's thread: {}", error.what()));
  }
  return {};
}

void Workers::post(std::function<void()> work, std::uint64_t id) {
  {
    const MutexLock lock(mutex_);
    if (stopping_) return;
    jobs_.push_back({.id = id, .work = std::move(work)});
  }
  posted_.notify_one();
}

bool Workers::drop(std::uint64_t id) {
  Job dropped;  // Ends without the lock.
  const MutexLock lock(mutex_);
  const auto at = std::ranges::find(jobs_, id, &Job::id);
  if (id == 0 || at == jobs_.end()) return false;
  dropped = std::move(*at);
  jobs_.erase(at);
  return true;
}

void Workers::stop() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    jobs_.clear();
  }
  posted_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void Workers::run() {
  for (;;) {
    Job job;
    {
      const MutexLock lock(mutex_);
      while (jobs_.empty() && !stopping_) posted_.wait(mutex_);
      if (stopping_) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    job.work();
  }
}

}  // namespace freshet::rpc
