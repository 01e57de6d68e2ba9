// SPDX-License-Identifier: Apache-2.0
#include "repo/levels/rank/level_thread.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

namespace freshet::levels {

void LevelThread::join() {
  if (thread_.joinable()) thread_.join();
}

void LevelThread::add(const Due& due) {
  const MutexLock lock(mutex_);
  due_.push_back(due);
  changed_.notify_all();
}

void LevelThread::end() {
  const MutexLock lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

std::optional<Due> LevelThread::next() {
  const MutexLock lock(mutex_);
  while (!ended_ && due_.empty()) changed_.wait(mutex_);
  if (ended_) return std::nullopt;
  const Due due = due_.front();
  due_.pop_front();
  return due;
}

void LevelThread::run(LevelWork& work) {
  if (is_patient_) lower_own_priority();
  while (const std::optional<Due> due = next()) {
    const Status reached = work.reach(*due);
    job_.say(LevelNote::Kind::done, due->version, due->step, level_,
             reached ? std::nullopt : std::optional<Error>(reached.error()));
  }
}

void lower_own_priority() {
  constexpr int kNicer = 10;
  constexpr int kNicestOfAll = 19;
  constexpr int kThisThread = 1;  // IOPRIO_WHO_PROCESS, which is a thread.
  constexpr int kClassShift = 13;
  constexpr int kIdle = 3;
  constexpr int kBestEffortLowest = 2 << kClassShift | 7;
  const int nice_now = ::getpriority(PRIO_PROCESS, 0);
  (void)::setpriority(PRIO_PROCESS, 0, std::min(nice_now + kNicer, kNicestOfAll));
  const long io_now = ::syscall(SYS_ioprio_get, kThisThread, 0);
  if (io_now >= 0 && io_now >> kClassShift != kIdle) (void)::syscall(SYS_ioprio_set, kThisThread, 0, kBestEffortLowest);
}

}  // namespace freshet::levels
