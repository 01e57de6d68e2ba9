// SPDX-License-Identifier: Apache-2.0
#include "repo/serve/server/workers.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "core/base/format.h"

namespace freshet::rpc {

Workers::~Workers() { stop(); }

Status Workers::start(std::size_t threads, std::size_t of_one_owner) {
  of_one_owner_ = of_one_owner == 0 ? threads : of_one_owner;
  try {
    for (std::size_t i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
  } catch (const std::system_error& error) {
    stop();
    return fail(Code::unavailable, format("start a server's thread: {}", error.what()));
  }
  return {};
}

void Workers::post(std::function<void()> work, std::uint64_t id, const std::string& owner) {
  {
    const MutexLock lock(mutex_);
    if (stopping_) return;
    lines_[owner].jobs.push_back({.id = id, .work = std::move(work)});
  }
  posted_.notify_one();
}

bool Workers::drop(std::uint64_t id) {
  Job dropped;  // Ends without the lock.
  if (id == 0) return false;
  const MutexLock lock(mutex_);
  for (auto line = lines_.begin(); line != lines_.end(); ++line) {
    auto& jobs = line->second.jobs;
    const auto at = std::ranges::find(jobs, id, &Job::id);
    if (at == jobs.end()) continue;
    dropped = std::move(*at);
    jobs.erase(at);
    if (jobs.empty() && line->second.running == 0) lines_.erase(line);
    return true;
  }
  return false;
}

void Workers::stop() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    for (auto& [owner, line] : lines_) line.jobs.clear();
  }
  posted_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

Workers::Lines::iterator Workers::next() {
  const auto may_begin = [&](const auto& entry) {
    return !entry.second.jobs.empty() && entry.second.running < of_one_owner_;
  };
  const auto after = lines_.upper_bound(last_);
  const auto found = std::find_if(after, lines_.end(), may_begin);
  if (found != lines_.end()) return found;
  const auto before = std::find_if(lines_.begin(), after, may_begin);
  return before == after ? lines_.end() : before;
}

bool Workers::take(Job& job, std::string& owner) {
  const MutexLock lock(mutex_);
  auto line = next();
  while (line == lines_.end() && !stopping_) {
    posted_.wait(mutex_);
    line = next();
  }
  if (stopping_) return false;
  owner = last_ = line->first;
  ++line->second.running;
  job = std::move(line->second.jobs.front());
  line->second.jobs.pop_front();
  return true;
}

void Workers::end(const std::string& owner) {
  const MutexLock lock(mutex_);
  const auto line = lines_.find(owner);
  --line->second.running;
  if (!line->second.jobs.empty()) return posted_.notify_one();  // A thread may have waited for this owner's turn.
  if (line->second.running == 0) lines_.erase(line);
}

void Workers::run() {
  Job job;
  std::string owner;
  while (take(job, owner)) {
    std::exchange(job, {}).work();  // What it held is gone when it counts as ended.
    end(owner);
  }
}

}  // namespace freshet::rpc
