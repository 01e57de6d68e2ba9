// SPDX-License-Identifier: Apache-2.0
#include "transport/channel/skeleton/answerer.h"

#include <utility>

namespace freshet::channel {
namespace {

/// Two, so that a small delta need not wait for a large one.
constexpr std::size_t kAnswererThreads = 2;

}  // namespace

void Answerer::submit(std::shared_ptr<Job> job) {
  job->done.store(false);
  while (threads_.size() < kAnswererThreads) threads_.emplace_back([this] { run(); });
  const MutexLock lock(mutex_);
  jobs_.push_back(std::move(job));
  changed_.notify_one();
}

void Answerer::stop() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    for (const auto& job : std::exchange(jobs_, {})) {
      job->answer = fail(Code::cancelled, "the server ends");
      job->done.store(true);
    }
    changed_.notify_all();
  }
  for (std::thread& thread : std::exchange(threads_, {})) thread.join();
}

std::shared_ptr<Answerer::Job> Answerer::next() {
  const MutexLock lock(mutex_);
  while (jobs_.empty() && !stopping_) changed_.wait(mutex_);
  if (jobs_.empty()) return nullptr;
  std::shared_ptr<Job> job = std::move(jobs_.front());
  jobs_.pop_front();
  return job;
}

void Answerer::run() {
  while (const std::shared_ptr<Job> job = next()) {
    job->answer = job->open->answer(job->piece);
    job->done.store(true);
    wake_.wake();
  }
}

}  // namespace freshet::channel
