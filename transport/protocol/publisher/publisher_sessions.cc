// SPDX-License-Identifier: Apache-2.0
#include "transport/protocol/publisher/publisher_sessions.h"

#include <algorithm>
#include <utility>

#include "core/base/format.h"

namespace freshet::protocol {

Result<const PublisherSession*> PublisherSessions::admit(const Peer& peer, Hello hello, Time now,
                                                         std::string_view key) {
  if (const auto known = sessions_.find(hello.session); known != sessions_.end()) {
    PublisherSession& session = known->second;
    const bool proved = hello.door_token == session.token();
    if (session.has_left || (session.peer() != peer && !proved)) return nullptr;
    session.move_to(peer);
    session.hear(now);
    session.take_device(std::move(hello.device));
    see_number(hello.highest_seen);
    return &session;
  }
  if (hello.door_token != 0) return nullptr;
  const std::vector<SessionId> replaced = doorless_of(peer);
  const Status may = check(hello, replaced.size(), key);
  // In this order, so that what waited for the session before waits for the new one.
  const PublisherSession* const opened = may ? &open(peer, std::move(hello), now, key) : nullptr;
  for (const SessionId id : replaced) end(id);
  if (!may) return fail(may.error());
  return opened;
}

/// One peer's word would else be the end of all numbers.
void PublisherSessions::see_number(VersionNumber number) {
  if (number <= std::max(options_.believed_number_max, versions_.newest())) {
    number_floor_ = std::max(number_floor_, number);
  }
}

std::uint32_t PublisherSessions::common_channels(const Hello& hello) const {
  std::uint32_t offered = 0;
  for (const ChannelOffer& offer : options_.channels) offered |= bit(offer.kind);
  return hello.channels & offered & ~bit(ChannelKind::shm);
}

Status PublisherSessions::check(const Hello& hello, std::size_t replaced, std::string_view key) const {
  if (hello.protocol != kProtocolVersion) {
    return fail(Code::unsupported,
                format("the subscriber speaks protocol {}, this publisher speaks {}: use one release of Freshet",
                       hello.protocol, kProtocolVersion));
  }
  if (hello.model != options_.model) {
    return fail(Code::not_found,
                format("the subscriber asks for {}, this publisher has {}", hello.model, options_.model));
  }
  if (!options_.host.empty() && hello.host != options_.host && common_channels(hello) == 0) {
    const auto fetches = [](const ChannelOffer& offer) { return offer.kind != ChannelKind::shm; };
    return fail(
        Code::unsupported,
        std::ranges::none_of(options_.channels, fetches)
            ? format("{} is published on another host, so its memory cannot be mapped", options_.model)
            : format("{} is published on another host, and no channel is common to both sides", options_.model));
  }
  if (hello.staged && options_.activation.follows) {
    return fail(Code::unsupported,
                format("{} is relayed here: a member of its group has to follow the publisher itself", options_.model));
  }
  if (hello.session == 0 || hello.highest_seen > kHighestSeenMax) {
    return fail(Code::invalid_argument, "a Hello has no session, or impossible numbers");
  }
  if (sessions_.size() - replaced >= options_.sessions_max) {
    return fail(Code::out_of_space,
                format("{} has {} subscribers, the most that its publisher takes", options_.model, sessions_.size()));
  }
  const auto is_of_key = [&](const auto& entry) { return entry.second.key() == key; };
  if (!key.empty() && sessions_.size() >= options_.sessions_per_key_max) {
    const auto of_key = static_cast<std::size_t>(std::ranges::count_if(sessions_, is_of_key));
    if (of_key >= options_.sessions_per_key_max + replaced) {
      return fail(Code::out_of_space, format("{} has {} subscribers with this key, the most that one key may have",
                                             options_.model, of_key));
    }
  }
  return {};
}

const PublisherSession& PublisherSessions::open(const Peer& peer, Hello hello, Time now, std::string_view key) {
  const SessionId id = hello.session;
  const HolderId holder = versions_.next_holder();
  const std::uint32_t common = common_channels(hello);
  see_number(hello.highest_seen);
  PublisherSession& session =
      sessions_
          .try_emplace(id, peer, std::move(hello), common, holder, keyed_word(options_.token_seed, id, holder), key)
          .first->second;
  session.last_heard = now;
  session.staleness.begin(now);
  if (session.hello().mode == Mode::every) {
    for (const VersionNumber number : versions_.table().numbers()) {
      if (number > session.hello().after) session.enqueue(number, versions_, options_.every_queue_versions_max);
    }
  }
  return session;
}

std::vector<SessionId> PublisherSessions::doorless_of(const Peer& peer) const {
  std::vector<SessionId> doorless;
  for (const auto& [id, session] : sessions_) {
    if (session.peer() == peer && !session.door_open) doorless.push_back(id);
  }
  return doorless;
}

PublisherSession* PublisherSessions::find(const Peer& peer, SessionId id) {
  const auto entry = sessions_.find(id);
  return entry != sessions_.end() && entry->second.peer() == peer ? &entry->second : nullptr;
}

void PublisherSessions::on_committed(VersionNumber number) {
  number_floor_ = std::max(number_floor_, number);
  for (auto& [id, session] : sessions_) {
    if (session.hello().mode != Mode::every || session.has_left) continue;
    session.owe(number);
    session.enqueue(number, versions_, options_.every_queue_versions_max);
  }
}

void PublisherSessions::end(SessionId id) {
  const auto entry = sessions_.find(id);
  if (entry == sessions_.end()) return;
  entry->second.end(versions_);
  leases_.close_all_of(id);
  if (entry->second.door_open) out_.add(action::CloseDoor{.session = id});
  sessions_.erase(entry);
}

/// Its door says when the last snapshot is dropped; a session without one has nothing that is read.
void PublisherSessions::on_bye(PublisherSession& session, const Bye& bye) {
  const SessionId id = session.hello().session;
  if (!bye.reads_on || !session.door_open) return end(id);
  session.leave(versions_);
  leases_.close_all_of(id);
}

bool PublisherSessions::on_door_open(SessionId id, std::uint64_t token, Time now) {
  const auto entry = sessions_.find(id);
  if (entry == sessions_.end() || entry->second.token() != token || entry->second.door_open) return false;
  entry->second.door_open = true;
  entry->second.last_heard = now;
  return true;
}

bool PublisherSessions::on_door_closed(SessionId id) {
  const auto entry = sessions_.find(id);
  if (entry == sessions_.end() || !entry->second.door_open) return false;
  PublisherSession& session = entry->second;
  session.door_open = false;
  const bool wants_more = session.hello().mode == Mode::every || !is_mapped(session.channel);
  if (!session.can_fetch() || !wants_more || session.has_left) {
    end(id);
    return true;
  }
  session.release_mapped(versions_);
  session.silent = true;  // Most likely it died: its queue is the first to be shed.
  return false;
}

void PublisherSessions::end_leases(const std::vector<LeaseId>& leases, bool by_force) {
  for (const LeaseId lease : leases) sessions_.at(leases_.session_of(lease)).drop_lease(lease);
  leases_.close(leases, by_force);
}

std::uint64_t PublisherSessions::shed(std::uint64_t bytes_wanted, bool silent_ones_only) {
  std::uint64_t freed = 0;
  for (const VersionNumber number : versions_.table().numbers()) {
    if (freed >= bytes_wanted) break;
    if (!kept_by_queues_alone(number, silent_ones_only)) continue;
    for (auto& [id, session] : sessions_) {
      if (session.queue().contains(number)) freed += session.give_up(number, versions_);
    }
  }
  return freed;
}

bool PublisherSessions::kept_by_queues_alone(VersionNumber number, bool silent_ones_only) const {
  if (number == versions_.newest() || versions_.is_kept(number) || leases_.name(number)) return false;
  return std::all_of(sessions_.begin(), sessions_.end(), [&](const auto& entry) {
    const PublisherSession& session = entry.second;
    const bool waits = session.queue().contains(number);
    return !session.holds(number) && (!waits || session.silent || !silent_ones_only);
  });
}

Duration PublisherSessions::patience(const PublisherSession& session) const {
  const bool remote = session.can_fetch() && (!session.door_open || session.has_leases());
  if (remote) return std::max(options_.lease_silence, options_.silent_after);
  return session.door_open ? Duration::max() : options_.silent_after;
}

void PublisherSessions::expire(SessionId id) {
  PublisherSession& session = sessions_.at(id);
  if (!session.door_open) return end(id);
  session.drop_leases();
  leases_.close_all_of(id);
}

void PublisherSessions::tick(Time now) {
  std::vector<SessionId> expired;
  for (auto& [id, session] : sessions_) {
    if (now - session.last_heard >= options_.silent_after) session.silent = true;
    if (now - session.last_heard >= patience(session)) expired.push_back(id);
  }
  for (const SessionId id : expired) expire(id);
  end_leases(leases_.idle(now), /*by_force=*/false);
}

Time PublisherSessions::next_tick() const {
  Time next = leases_.next_tick();
  for (const auto& [id, session] : sessions_) {
    if (!session.silent) next = std::min(next, session.last_heard + options_.silent_after);
    if (session.postponed) next = std::min(next, session.postponed->until);
    if (const Duration left = patience(session); left != Duration::max())
      next = std::min(next, session.last_heard + left);
  }
  return next;
}

}  // namespace freshet::protocol
