// SPDX-License-Identifier: Apache-2.0
#include "transport/zmq/hub/activation_waiters.h"

#include <string>
#include <utility>

#include "core/base/interruption.h"

namespace freshet {
namespace {

/// A peer of ZeroMQ has at most so many bytes.
constexpr std::size_t kPeerBytesMax = 255;

}  // namespace

protocol::Peer ActivationWaiters::begin() {
  const MutexLock lock(mutex_);
  protocol::Peer waiter = std::string(kPeerBytesMax + 1, '.') + std::to_string(++made_);
  waiters_.emplace(waiter, std::nullopt);
  return waiter;
}

bool ActivationWaiters::is_one(const protocol::Peer& peer) { return peer.size() > kPeerBytesMax; }

void ActivationWaiters::answer(const protocol::Peer& waiter, Answer answer) {
  const MutexLock lock(mutex_);
  const auto at = waiters_.find(waiter);
  if (at != waiters_.end()) at->second = std::move(answer);
  answered_.notify_all();
}

std::optional<ActivationWaiters::Answer> ActivationWaiters::wait(const protocol::Peer& waiter, Time deadline,
                                                                 const std::stop_token& stop) {
  const StopWakes wakes(stop, mutex_, answered_);
  std::optional<Answer> answer;
  for (;;) {
    const Time look = Interruption::next_look(deadline);
    answer = wait_until(waiter, look, stop);
    if (!answer && stop.stop_requested()) {
      answer = fail(Code::cancelled, "the wait for an activation was stopped by its caller");
    }
    if (answer || look == deadline) break;
    if (!Interruption::is_wanted()) continue;
    answer = fail(Code::cancelled, "the wait for an activation was interrupted");
    break;
  }
  const MutexLock lock(mutex_);
  waiters_.erase(waiter);
  return answer;
}

std::optional<ActivationWaiters::Answer> ActivationWaiters::wait_until(const protocol::Peer& waiter, Time until,
                                                                       const std::stop_token& stop) {
  const MutexLock lock(mutex_);
  const std::optional<Answer>& answer = waiters_.at(waiter);
  while (!answer && !stop.stop_requested()) {
    if (!answered_.wait_until(mutex_, until)) break;
  }
  return answer;
}

}  // namespace freshet
