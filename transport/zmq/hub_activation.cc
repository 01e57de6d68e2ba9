#include <utility>

#include "core/format.h"
#include "core/mutex.h"
#include "transport/activation_request.h"
#include "transport/deadline.h"
#include "transport/zmq/publisher_hub.h"

// What the hub does about what is current: it hands requests for an activation to the machines, from other processes
// and from this one, and the directory's answers.

namespace freshet {

/// Somebody in this process who waits for an Activated.
struct PublisherHub::Waiter {
  Mutex mutex;
  CondVar answered;
  std::optional<protocol::Activated> answer FRESHET_GUARDED_BY(mutex);

  std::optional<protocol::Activated> wait(Time deadline) {
    MutexLock lock(mutex);
    while (!answer) {
      if (!answered.wait_until(mutex, deadline)) break;
    }
    return answer;
  }
  void put(const protocol::Activated& activated) {
    MutexLock lock(mutex);
    answer = activated;
    answered.notify_all();
  }
};

Result<protocol::Activated> PublisherHub::activate(protocol::Activate request, Duration at_most) {
  const auto waiter = std::make_shared<Waiter>();
  protocol::Peer peer;
  post_and_wait([&] {
    peer = std::string(kPeerBytesMax + 1, '.') + std::to_string(++waiters_made_);
    waiters_[peer] = waiter;
    activate(peer, request);
  });
  auto answer = waiter->wait(deadline_in(at_most));
  post([this, peer] { waiters_.erase(peer); });
  if (!answer) return fail(Code::timed_out, format("whether {} was activated is not known yet", request.model));
  return std::move(*answer);
}

/// Without keys whoever can connect is this user, or one of this host's; so is who comes by a file of this user's own.
bool PublisherHub::may_activate(const protocol::Peer& peer, const protocol::Activate& request, std::string_view key) {
  if (authenticator_ == nullptr || !control_.address.is_tcp()) return true;
  const Status may = authenticator_->may_activate(key);
  if (may) return true;
  rejects_.count(
      format("an activation of {}@{} is refused: {}", request.model, request.desired.number, may.error().message()),
      system_clock().now());
  send_to(peer, protocol::Activated{
                    .request = request.request,
                    .refused = Error(Code::failed_precondition,
                                     format("{}: this key may subscribe, but not say what is current; its line in the "
                                            "publisher's allow-list needs the word operator before it",
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

PublisherStat PublisherHub::stat_of(const Model& model) const {
  PublisherStat stat = model.owner->stat(model.machine->sessions());
  const protocol::Activation& activation = model.machine->activation();
  stat.current = current_version(activation.current());
  const VersionNumber current = activation.current().number;
  stat.current_kept = current == 0 || model.machine->versions().find(current) != nullptr;
  stat.candidate = activation.candidate();
  stat.activation_failure = activation.last_failure();
  stat.mixed = activation.last_mixed();
  return stat;
}

}  // namespace freshet
