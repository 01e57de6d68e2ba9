// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Those in this process who wait for an Activated, each as a peer of its own name. Any thread.

#include <map>
#include <optional>
#include <stop_token>

#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "transport/protocol/messages.h"
#include "transport/protocol/publisher/actions.h"

namespace freshet {

class ActivationWaiters {
 public:
  using Answer = Result<protocol::Activated>;
  /// One more, until its wait() has returned.
  protocol::Peer begin() FRESHET_EXCLUDES(mutex_);
  /// No peer of a control socket has such a name.
  static bool is_one(const protocol::Peer& peer);
  /// Nothing when it waits no more.
  void answer(const protocol::Peer& waiter, Answer answer) FRESHET_EXCLUDES(mutex_);
  /// Nothing when no answer came in time; cancelled.
  std::optional<Answer> wait(const protocol::Peer& waiter, Time deadline, const std::stop_token& stop)
      FRESHET_EXCLUDES(mutex_);

 private:
  std::optional<Answer> wait_until(const protocol::Peer& waiter, Time until, const std::stop_token& stop)
      FRESHET_EXCLUDES(mutex_);

  Mutex mutex_;
  CondVar answered_;
  std::map<protocol::Peer, std::optional<Answer>> waiters_ FRESHET_GUARDED_BY(mutex_);
  std::uint64_t made_ FRESHET_GUARDED_BY(mutex_) = 0;
};

}  // namespace freshet
