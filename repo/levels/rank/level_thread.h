// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A level above memory is work: bring a version there. A thread does it for one version after another, behind the
/// loop.

#include <cstdint>
#include <deque>
#include <optional>
#include <thread>

#include "core/base/mutex.h"
#include "core/base/result.h"
#include "repo/levels/rank/job.h"

namespace freshet::levels {

/// A version that rank 0 said may go to the next level. Its level before has it, at all ranks.
struct Due {
  Version version;
  std::uint64_t step = 0;
};

/// What a rank does so that a version reaches a level. One thread at a time.
class LevelWork {
 public:
  virtual ~LevelWork() = default;
  virtual Status reach(const Due& due) = 0;
};

/// Has one LevelWork reach its level with each version, and tells rank 0 the result. Any thread.
class LevelThread {
 public:
  /// `is_patient`: training goes first, for processor and disk.
  LevelThread(const Job& job, Level level, bool is_patient) : job_(job), level_(level), is_patient_(is_patient) {}
  LevelThread(const LevelThread&) = delete;
  LevelThread& operator=(const LevelThread&) = delete;

  /// REQUIRES: `work` outlives join().
  void start(LevelWork& work) {
    thread_ = std::thread([this, &work] { run(work); });
  }
  void add(const Due& due) FRESHET_EXCLUDES(mutex_);
  /// No other version begins.
  void end() FRESHET_EXCLUDES(mutex_);
  /// REQUIRES: end() was called.
  void join();

 private:
  std::optional<Due> next() FRESHET_EXCLUDES(mutex_);
  void run(LevelWork& work);

  const Job& job_;
  const Level level_;
  const bool is_patient_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<Due> due_ FRESHET_GUARDED_BY(mutex_);
  bool ended_ FRESHET_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

/// Of the calling thread alone. Training goes before what only protects it: its threads get the processor first, and
/// their reads the disk. (DeepFreeze, section IV-A a.)
void lower_own_priority();

}  // namespace freshet::levels
