// SPDX-License-Identifier: Apache-2.0
#include "repo/serve/client/client_machine.h"

#include <algorithm>

namespace freshet::rpc {

void ClientMachine::on_sent(std::uint64_t request) { waiting_.insert(request); }

bool ClientMachine::on_reply(std::uint64_t request, bool is_last, Time now) {
  heard_ = now;
  if (!is_last) return waiting_.contains(request);
  return waiting_.erase(request) != 0;
}

std::vector<std::uint64_t> ClientMachine::on_pong(const std::vector<std::uint64_t>& running, Time now) {
  heard_ = now;
  std::vector<std::uint64_t> lost;
  if (!ping_covers_) return lost;
  for (const std::uint64_t request : *ping_covers_) {
    const bool is_running = std::find(running.begin(), running.end(), request) != running.end();
    if (!is_running && waiting_.erase(request) != 0) lost.push_back(request);
  }
  ping_covers_.reset();
  return lost;
}

Time ClientMachine::ping_due() const {
  const Time kept_alive = pinged_ + times_.idle_ping;
  return waiting_.empty() ? kept_alive : std::min(kept_alive, std::max(heard_, pinged_) + times_.busy_ping);
}

ClientMachine::Tick ClientMachine::on_tick(Time now) {
  if (ping_covers_) return {.ping = false, .dead = now - std::max(heard_, pinged_) >= times_.silence};
  if (now < ping_due()) return {};
  pinged_ = now;
  ping_covers_ = waiting_;
  return {.ping = true, .dead = false};
}

Time ClientMachine::next_tick() const { return ping_covers_ ? std::max(heard_, pinged_) + times_.silence : ping_due(); }

}  // namespace freshet::rpc
