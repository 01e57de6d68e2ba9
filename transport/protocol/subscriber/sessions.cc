// SPDX-License-Identifier: Apache-2.0
#include "transport/protocol/subscriber/sessions.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/base/digest.h"

namespace freshet::protocol {

void Sessions::begin_next() {
  const std::array<std::uint64_t, 2> seed{seed_, ++made_};
  current_ = std::max<SessionId>(1, digest_of(bytes_of(seed.data(), seed.size())).low);
  sessions_[current_] = {};
}

void Sessions::leave(bool knocked) {
  const auto session = sessions_.find(current_);
  if (session == sessions_.end()) return;
  if (!session->second.held.empty()) return;  // Drained: LeaveDoor comes with the last unpin.
  if (knocked) out_.add(action::LeaveDoor{.session = current_});
  sessions_.erase(session);
}

void Sessions::end() {
  for (const auto& [id, session] : sessions_) {
    out_.send(Bye{.session = id, .reads_on = session.door_open && !session.held.empty()});
    out_.add(action::LeaveDoor{.session = id});
  }
  sessions_.clear();
}

void Sessions::on_door_open(std::uint64_t token) {
  Session& session = sessions_[current_];
  session.door_open = true;
  session.door_token = token;
}

bool Sessions::has_door(SessionId id) const {
  const auto entry = sessions_.find(id);
  return entry != sessions_.end() && entry->second.door_open;
}

std::optional<std::uint64_t> Sessions::claim_drained(SessionId id) {
  const auto entry = sessions_.find(id);
  if (entry == sessions_.end() || !entry->second.door_open || std::exchange(entry->second.claimed, true)) return {};
  return entry->second.door_token;
}

bool Sessions::take_grant(const Grant& grant) {
  const auto entry = sessions_.find(grant.session);
  if (entry == sessions_.end() || grant.grant <= entry->second.grants_seen) return false;
  entry->second.grants_seen = grant.grant;
  return true;
}

void Sessions::drop(SessionId id, VersionNumber number) {
  const auto entry = sessions_.find(id);
  if (entry == sessions_.end()) return;
  const auto hold = entry->second.held.find(number);
  if (hold == entry->second.held.end() || --hold->second > 0) return;
  entry->second.held.erase(hold);
  if (id == current_ || !entry->second.held.empty()) return tell_held(id);
  sessions_.erase(entry);
  out_.add(action::LeaveDoor{.session = id});
}

void Sessions::abandon(SessionId id, VersionNumber number) {
  out_.add(action::Abandon{.session = id, .number = number});
  drop(id, number);
}

void Sessions::tell_held(SessionId id) {
  const Session& session = sessions_[id];
  Held held{.session = id, .grants_seen = session.grants_seen};
  for (const auto& [number, times] : session.held) held.numbers.push_back(number);
  out_.send(std::move(held));
}

void Sessions::repeat_held() {
  for (auto& [id, session] : sessions_) {
    if (session.grants_seen > 0) tell_held(id);
    session.claimed = false;
  }
}

}  // namespace freshet::protocol
