// SPDX-License-Identifier: Apache-2.0
#include "repo/serve/server/workers.h"

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

void Workers::post(std::function<void()> job) {
  {
    const MutexLock lock(mutex_);
    if (stopping_) return;
    jobs_.push_back(std::move(job));
  }
  posted_.notify_one();
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
    std::function<void()> job;
    {
      const MutexLock lock(mutex_);
      while (jobs_.empty() && !stopping_) posted_.wait(mutex_);
      if (stopping_) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    job();
  }
}

}  // namespace freshet::rpc
