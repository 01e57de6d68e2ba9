// SPDX-License-Identifier: Apache-2.0
#include "transport/channel/skeleton/server.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "core/base/format.h"

namespace freshet::channel {
namespace {

constexpr Duration kIdleServerRound = std::chrono::hours(1);

}  // namespace

Result<std::unique_ptr<ChannelServer>> Server::open(std::unique_ptr<Service> service, std::unique_ptr<Port> port) {
  std::unique_ptr<Server> server(new Server(std::move(service), std::move(port)));
  try {
    server->thread_ = std::thread([raw = server.get()] { raw->run(); });
  } catch (const std::system_error& error) {
    return fail(Code::unavailable, format("start a channel's thread: {}", error.what()));
  }
  return server;
}

Server::~Server() {
  stopping_.store(true);
  service_->wake.wake();
  if (thread_.joinable()) thread_.join();
  service_->answerer.stop();
}

void Server::cut_off(protocol::SessionId session) {
  {
    const MutexLock lock(mutex_);
    cut_off_.push_back(session);
  }
  service_->wake.wake();
}

ChannelStat Server::stat() const {
  return {.bytes_sent = service_->bytes_sent.load(),
          .requests = service_->requests.load(),
          .refused = service_->refused.load(),
          .peers = service_->peers.load(),
          .bytes_registered = port_->bytes_registered()};
}

void Server::run() {
  int idle = 0;
  while (!stopping_.load()) {
    const Port::Taken taken = port_->receive();
    bool did = take_commands() || taken.any;
    const Time now = system_clock().now();
    // Before send(), which may take long: messages that come meanwhile wait, and their senders would seem silent.
    if (taken.all) {
      port_->cut([&](const RequestQueue& queue) { return queue.is_busy() && now - queue.heard() > kPeerSilence; });
    }
    did = port_->send() || did;
    const Duration left = did ? Duration::zero() : time_to_silence(now);
    const bool is_busy = left != kIdleServerRound;
    if (did || (is_busy && ++idle < port_->idle_rounds())) {
      if (did) idle = 0;
      continue;
    }
    idle = 0;
    port_->sleep(service_->wake, left);
  }
  port_->close();
}

bool Server::take_commands() {
  std::vector<protocol::SessionId> sessions;
  {
    const MutexLock lock(mutex_);
    sessions.swap(cut_off_);
  }
  if (sessions.empty()) return false;
  port_->cut([&](const RequestQueue& queue) {
    return std::ranges::any_of(sessions, [&](protocol::SessionId session) { return queue.fetches_for(session); });
  });
  return true;
}

Duration Server::time_to_silence(Time now) const {
  Duration left = kIdleServerRound;
  port_->cut([&](const RequestQueue& queue) {
    if (queue.is_busy()) left = std::min(left, std::max(queue.heard() + kPeerSilence - now, Duration::zero()));
    return false;
  });
  return left;
}

}  // namespace freshet::channel
