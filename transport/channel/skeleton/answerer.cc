// SPDX-License-Identifier: Apache-2.0
#include "transport/channel/skeleton/answerer.h"

#include <utility>

namespace freshet::channel {
namespace {

/// Two, so that a small delta need not wait for a large one.
constexpr std::size_t kAnswererThreads = 2;

}  // namespace

void Answerer::submit(const std::shared_ptr<Job>& job) {
  job->done.store(false);
  while (threads_.size() < kAnswererThreads) threads_.emplace_back([this] { run(); });
  const MutexLock lock(mutex_);
  std::erase_if(jobs_, [](const std::weak_ptr<Job>& kept) { return kept.expired(); });
  jobs_.push_back(job);
  changed_.notify_one();
}

void Answerer::stop() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    for (const std::weak_ptr<Job>& kept : std::exchange(jobs_, {})) {
      const std::shared_ptr<Job> job = kept.lock();
      if (job == nullptr) continue;
      job->answer = fail(Code::cancelled, "the server ends");
      job->done.store(true);
    }
    changed_.notify_all();
  }
  for (std::thread& thread : std::exchange(threads_, {})) thread.join();
}

std::shared_ptr<Answerer::Job> Answerer::next() {
  const MutexLock lock(mutex_);
  for (;;) {
    while (jobs_.empty() && !stopping_) changed_.wait(mutex_);
    if (jobs_.empty()) return nullptr;
    std::shared_ptr<Job> job = jobs_.front().lock();
    jobs_.pop_front();
    if (job != nullptr) return job;
  }
}

void Answerer::run() {
  while (const std::shared_ptr<Job> job = next()) {
    job->answer = job->open->answer(job->piece);
    job->done.store(true);
    wake_.wake();
  }
}

}  // namespace freshet::channel
