// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What a subscriber's loop tells other threads of where it stands: what it serves and what is current, since when that
/// is confirmed, what is staged, and until when a member of the group may believe what it knows.

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <stop_token>
#include <vector>

#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/base/result.h"
#include "transport/loop_tasks.h"
#include "transport/protocol/messages.h"

namespace freshet::detail {

class Standing {
 public:
  struct News {
    VersionNumber serving = 0;
    std::uint64_t serving_epoch = 0;
    protocol::Current current;         ///< What the publisher last said.
    std::optional<Time> confirmed_at;  ///< What is served was the current version then, or later.
    VersionNumber staging = 0;         ///< To be staged.
    VersionNumber staged = 0;
    std::optional<Error> staging_failed;
    bool operator==(const News& other) const;
  };

  /// `wake` is the loop's, borrowed.
  explicit Standing(const Wake& wake) : tasks_(wake, /*tasks_max=*/1024) {}

  // Any thread.

  /// Whether a member does not know any more what was decided. No lock.
  bool is_lapsed(Time now) const { return now.time_since_epoch().count() >= lapses_at_ns_.load(); }
  News news() const FRESHET_EXCLUDES(mutex_);
  /// Waits until there are others than `known`, or the deadline, or a stop is asked for; what there is then.
  News wait_for_other(const News& known, Time deadline, const std::stop_token& stop) FRESHET_EXCLUDES(mutex_);
  /// To be run by the loop, soon. Dropped, and false, when very many wait already.
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
