// SPDX-License-Identifier: Apache-2.0
#include "transport/protocol/publisher/waiting_hellos.h"

#include <utility>

namespace freshet::protocol {

void WaitingHellos::add(const Peer& peer, const Hello& hello, std::string_view key, Time now) {
  if (hello.door_token != 0) return;
  if (waiting_.size() >= kMax) std::erase_if(waiting_, [&](const auto& entry) { return entry.second.until <= now; });
  if (waiting_.size() >= kMax && !waiting_.contains(peer)) return;
  waiting_.insert_or_assign(peer,
                            Waiting{.peer = peer, .hello = hello, .key = std::string(key), .until = now + kKeptFor});
}

void WaitingHellos::forget(const Peer& peer, SessionId session) {
  const auto at = waiting_.find(peer);
  if (at != waiting_.end() && at->second.hello.session == session) waiting_.erase(at);
}

std::vector<WaitingHellos::Waiting> WaitingHellos::take(std::string_view model, Time now) {
  std::vector<Waiting> taken;
  for (auto at = waiting_.begin(); at != waiting_.end();) {
    Waiting& waiting = at->second;
    const bool is_of_model = waiting.hello.model == model;
    if (is_of_model && waiting.until > now) taken.push_back(std::move(waiting));
    at = is_of_model ? waiting_.erase(at) : std::next(at);
  }
  return taken;
}

}  // namespace freshet::protocol
