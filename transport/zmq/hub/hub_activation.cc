// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "core/base/deadline.h"
#include "core/base/format.h"
#include "core/base/interruption.h"
#include "core/base/mutex.h"
#include "transport/ask/activation_request.h"
#include "transport/zmq/hub/publisher_hub.h"

// What the hub does about what is current: it hands requests for an activation to the machines, from other processes
// and from this one, and the directory's answers.

namespace freshet {

/// Somebody in this process who waits for an Activated.
struct PublisherHub::Waiter {
  using Answer = Result<protocol::Activated>;
  Mutex mutex;
  CondVar answered;
  std::optional<Answer> answer FRESHET_GUARDED_BY(mutex);

  std::optional<Answer> wait(Time deadline, const std::stop_token& stop) {
    const StopWakes wakes(stop, mutex, answered);
    for (;;) {
      const Time look = Interruption::next_look(deadline);
      if (auto there = wait_until(look, stop)) return there;
      if (stop.stop_requested()) return fail(Code::cancelled, "the wait for an activation was stopped by its caller");
      if (look == deadline) return std::nullopt;
      if (Interruption::is_wanted()) return fail(Code::cancelled, "the wait for an activation was interrupted");
    }
  }
  std::optional<Answer> wait_until(Time until, const std::stop_token& stop) {
    MutexLock lock(mutex);
    while (!answer && !stop.stop_requested()) {
      if (!answered.wait_until(mutex, until)) break;
    }
    return answer;
  }
  void put(Answer activated) {
    MutexLock lock(mutex);
    answer = std::move(activated);
    answered.notify_all();
  }
};

Result<protocol::Activated> PublisherHub::activate(
    const std::string& name, std::function<Result<protocol::Activate>(const protocol::Current& current)> make_request,
    Duration at_most, const std::stop_token& stop) {
  const Time deadline = deadline_in(at_most);
  const auto waiter = std::make_shared<Waiter>();
  const protocol::Peer peer = std::string(kPeerBytesMax + 1, '.') + std::to_string(++waiters_made_);
  post([this, name, peer, waiter, make_request = std::move(make_request)] {
    const auto model = models_.find(name);
    auto request =
        make_request(model == models_.end() ? protocol::Current() : model->second.machine->activation().current());
    if (!request) return waiter->put(fail(std::move(request).error()));
    waiters_[peer] = waiter;
    activate(peer, *request);
  });
  auto answer = waiter->wait(deadline, stop);
  post([this, peer] { waiters_.erase(peer); });
  if (!answer) return fail(Code::timed_out, format("whether {} was activated is not known yet", name));
  return std::move(*answer);
}

/// Without keys whoever can connect is this user, or one of this host's; so is who comes by a file of this user's own.
bool PublisherHub::may_activate(const protocol::Peer& peer, const protocol::Activate& request, std::string_view key) {
  if (authenticator_ == nullptr || !control_.address.is_tcp()) return true;
  const Status may = authenticator_->may_activate(key);
  if (may) return true;
  rejects_.count(
      format("an activation of {}@{} is refused: {}", request.model, request.desired.version, may.error().message()),
      system_clock().now());
  send_to(peer,
          protocol::Activated{.request = request.request,
                              .refused = Error(Code::failed_precondition,
                                               format("{}: this key may subscribe, but not activate versions: put the "
                                                      "word operator before the key in the publisher's allow-list",
                                                      request.model))});
  return false;
}

void PublisherHub::activate(const protocol::Peer& peer, const protocol::Activate& request) {
  const auto at = models_.find(request.model);
  if (at == models_.end()) {
    return send_to(peer, protocol::Activated{.request = request.request,
                                             .refused = Error(Code::not_found, format("{} is not published at {}",
                                                                                      request.model, address()))});
  }
  at->second.machine->on_message(peer, request, system_clock().now());
  carry_out(at->second);
}

void PublisherHub::answer_waiter(const protocol::Peer& peer, const protocol::Message& message) {
  const auto waiter = waiters_.find(peer);
  const auto* activated = std::get_if<protocol::Activated>(&message);
  if (waiter != waiters_.end() && activated != nullptr) waiter->second->put(*activated);
}

void PublisherHub::current_swapped(const std::string& name, Result<protocol::Current> record) {
  post([this, name, record = std::move(record)] {
    const auto at = models_.find(name);
    if (at == models_.end()) return;
    at->second.machine->on_current_swapped(record, system_clock().now());
    carry_out(at->second);
  });
}

void PublisherHub::current_seen(const std::string& name, const protocol::Current& pair) {
  post([this, name, pair] {
    const auto at = models_.find(name);
    if (at == models_.end()) return;
    at->second.machine->on_current_seen(pair, system_clock().now());
    carry_out(at->second);
  });
}

}  // namespace freshet
