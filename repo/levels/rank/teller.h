// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Tells the program of levels and lost peers (on_event), after it recorded in the folder what a restart has to know:
/// the numbers that are promised, and the newest version acknowledged at each level. The log tells of a level that
/// failed, for a program that takes no events.

#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/result.h"
#include "repo/levels/rank/job.h"
#include "repo/levels/rank/kept_shards.h"
#include "repo/levels/rank/version_book.h"

namespace freshet::levels {

/// Any thread.
class Teller {
 public:
  Teller(const Job& job, VersionBook& book, KeptShards& kept) : job_(job), book_(book), kept_(kept) {}
  Teller(const Teller&) = delete;
  Teller& operator=(const Teller&) = delete;

  void start() {
    thread_ = std::thread([this] { run(); });
  }
  void stop() FRESHET_EXCLUDES(mutex_);
  /// REQUIRES: stop() was called.
  void join();

  /// The first restore(): records promises, numbers ahead of `promises.number_max` among them.
  Status begin_life(Promises promises) FRESHET_EXCLUDES(mutex_);
  /// A number is promised before it is used, so that no later life uses it again: begin() waits until it is, or until
  /// the folder refused to promise more.
  bool has_answer(VersionNumber number) const FRESHET_EXCLUDES(mutex_);
  /// out_of_space: the number is not promised.
  Status check_promised(VersionNumber number) const FRESHET_EXCLUDES(mutex_);
  /// The number is used: those after it will be wanted.
  void use(VersionNumber number) FRESHET_EXCLUDES(mutex_);
  /// Numbers above `number_max` that were promised are free again. Where the folder does not take that, they are left
  /// out.
  void end_life(VersionNumber number_max) FRESHET_EXCLUDES(mutex_);

  void tell(const LevelNote& note) FRESHET_EXCLUDES(mutex_);
  void tell_lost(const std::vector<std::uint32_t>& lost, const Error& why) FRESHET_EXCLUDES(mutex_);
  bool has_told_all() const FRESHET_EXCLUDES(mutex_);

 private:
  struct Told {
    std::optional<LevelNote> note;
    std::vector<std::uint32_t> lost;
    std::optional<Error> error;
    Time at{};
  };
  bool is_short() const FRESHET_REQUIRES(mutex_);
  void run() FRESHET_EXCLUDES(mutex_);
  void promise_more() FRESHET_EXCLUDES(mutex_);
  void acknowledge(const LevelNote& note) FRESHET_EXCLUDES(mutex_);
  void carry_out(const Told& told) FRESHET_EXCLUDES(mutex_);
  void log_failure(const LevelNote& note);

  const Job& job_;
  VersionBook& book_;  ///< Its lock comes before mutex_: it is never called with mutex_ held.
  KeptShards& kept_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<Told> to_tell_ FRESHET_GUARDED_BY(mutex_);
  Promises promises_ FRESHET_GUARDED_BY(mutex_);
  std::optional<Error> promise_error_ FRESHET_GUARDED_BY(mutex_);  ///< Of the last try to promise more numbers.
  VersionNumber used_ FRESHET_GUARDED_BY(mutex_) = 0;              ///< 0: none.
  bool finished_ FRESHET_GUARDED_BY(mutex_) = false;
  bool stopping_ FRESHET_GUARDED_BY(mutex_) = false;
  std::set<Level> failing_;  ///< Those that failed a version since they reached one. Of thread_ alone.
  std::thread thread_;
};

}  // namespace freshet::levels
