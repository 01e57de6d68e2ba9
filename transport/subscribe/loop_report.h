// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A subscriber's loop reports to other threads: the served and the current version, since when this is confirmed, the
/// staged version, and until when a member of the group may believe all that. Other threads post tasks to the loop.

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <stop_token>

#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/base/result.h"
#include "transport/loop_tasks.h"
#include "transport/protocol/messages.h"

namespace freshet::detail {

class LoopReport {
 public:
  struct News {
    VersionNumber serving = 0;
    std::uint64_t serving_epoch = 0;
    protocol::Current current;         ///< As the publisher last said.
    std::optional<Time> confirmed_at;  ///< The served version was the current one then, or later.
    VersionNumber staging = 0;         ///< Being staged.
    VersionNumber staged = 0;
    std::optional<Error> staging_failed;
    bool operator==(const News& other) const;
  };

  /// `wake` is the loop's, borrowed.
  explicit LoopReport(const Wake& wake) : tasks_(wake, /*tasks_max=*/1024) {}

  // Any thread.

  /// True: this member may not know the group's last decision any more. No lock.
  bool is_lapsed(Time now) const { return now.time_since_epoch().count() >= lapses_at_ns_.load(); }
  News news() const FRESHET_EXCLUDES(mutex_);
  /// Waits for news other than `known`, until the deadline or a stop; returns the news of that moment.
  News wait_for_other(const News& known, Time deadline, const std::stop_token& stop) FRESHET_EXCLUDES(mutex_);
  /// The loop runs the task soon. False: very many tasks wait already, and this one was dropped.
  bool post(std::function<void()> task) { return tasks_.post(std::move(task)); }

  // The loop's thread.

  void run_tasks() { tasks_.run(); }
  /// `lapses_at`: nothing for who is no member.
  void set(const News& news, std::optional<Time> lapses_at) FRESHET_EXCLUDES(mutex_);

 private:
  LoopTasks tasks_;
  std::atomic<std::int64_t> lapses_at_ns_{std::numeric_limits<std::int64_t>::max()};
  mutable Mutex mutex_;
  CondVar changed_;
  News news_ FRESHET_GUARDED_BY(mutex_);
};

}  // namespace freshet::detail
