// SPDX-License-Identifier: Apache-2.0
#include "transport/protocol/publisher/publisher_machine.h"

#include <algorithm>
#include <array>
#include <type_traits>
#include <utility>

#include "core/base/check.h"
#include "core/base/format.h"

namespace freshet::protocol {
namespace {

/// What a grant's envelope, numbers and alignment may take beside its vectors.
constexpr std::size_t kGrantSlackBytes = 4096;

bool fits_on_wire(const CommittedVersion& version) {
  const std::size_t bytes = version.encoded_manifest.size() + version.manifest->architecture->encoded().size() +
                            version.places.size() * sizeof(SegmentPlace) +
                            version.slab_bytes.size() * sizeof(std::uint64_t);
  return version.encoded_manifest.size() <= kManifestBytesMax && version.slab_bytes.size() <= kSlabsMax &&
         bytes + kGrantSlackBytes <= kMessageBytesMax;
}

Activation::Options activation_options(const PublisherMachine::Options& options) {
  Activation::Options activation = options.activation;
  activation.model = options.model;
  return activation;
}

std::uint64_t epoch_in(const Want& want) { return want.after_epoch; }
std::uint64_t epoch_in(const Ping& ping) { return ping.epoch; }

std::vector<std::byte> copy_of(Bytes bytes) { return {bytes.begin(), bytes.end()}; }

}  // namespace

PublisherMachine::PublisherMachine(Options options)
    : options_(std::move(options)),
      versions_(options_.retained_versions),
      activation_(activation_options(options_)),
      leases_(options_.token_seed) {}

void PublisherMachine::on_committed(Committed version, Time now) {
  FRESHET_CHECK(version.manifest != nullptr && version.manifest->architecture != nullptr);
  FRESHET_CHECK(version.segments.size() == version.places.size());
  const VersionNumber number = version.manifest->name.number;
  const std::int64_t announced_ns = now.time_since_epoch().count();
  // Those who fetch it as it comes go on: all of it is there now.
  if (is_coming(number)) coming_.reset();
  commits_.append(number, version.missed_before);
  arrived_ = true;
  versions_.add_newest(std::move(version), announced_ns);
  number_floor_ = std::max(number_floor_, number);
  for (auto& [id, session] : sessions_) {
    if (session.hello().mode != Mode::every || session.has_left) continue;
    session.owe(number);
    session.enqueue(number, versions_, options_.every_queue_versions_max);
  }
  activation_.on_committed(number, now);
  announced_turn_ = 0;  // Told in any case.
  settle(now);
}

bool PublisherMachine::on_restored(CommittedVersion version, Time now) {
  const VersionNumber number = version.manifest->name.number;
  FRESHET_CHECK(number < versions_.newest() && version.segments.size() == version.places.size());
  if (versions_.find(number) != nullptr) return false;
  arrived_ = true;
  versions_.add_older(std::move(version), now.time_since_epoch().count());
  announced_turn_ = 0;  // Whoever asked for it too early asks again.
  settle(now);
  return true;
}

void PublisherMachine::on_message(const Peer& peer, Message message, Time now, std::string_view key) {
  dispatch(peer, std::move(message), now, key);
  settle(now);
}

void PublisherMachine::dispatch(const Peer& peer, Message message, Time now, std::string_view key) {
  if (auto* hello = std::get_if<Hello>(&message)) return on(peer, std::move(*hello), now, key);
  if (auto* bye = std::get_if<Bye>(&message)) {
    if (PublisherSession* session = session_of(peer, bye->session)) on_bye(*session, *bye);
    return;
  }
  if (const auto* ask = std::get_if<Activate>(&message)) return on(peer, *ask, now);
  const auto in_session = [&](const auto& m) {
    using M = std::decay_t<decltype(m)>;
    if constexpr (std::is_same_v<M, Want> || std::is_same_v<M, Held> || std::is_same_v<M, Ping> ||
                  std::is_same_v<M, Staged>) {
      PublisherSession* session = session_of(peer, m.session);
      if (session == nullptr || session->has_left) return send(peer, UnknownSession{.session = m.session});
      session->last_heard = now;
      session->silent = false;
      if constexpr (std::is_same_v<M, Want> || std::is_same_v<M, Ping>) {
        activation_.on_epoch_seen(epoch_in(m), now);
      }
      on(*session, m, now);
    }
  };
  std::visit(in_session, message);
}

void PublisherMachine::on(const Peer& peer, Hello hello, Time now, std::string_view key) {
  const auto known = sessions_.find(hello.session);
  if (known != sessions_.end()) {
    const bool proved = hello.door_token == known->second.token();
    if (known->second.has_left) return send(peer, UnknownSession{.session = hello.session});
    if (known->second.peer() != peer && !proved) return send(peer, UnknownSession{.session = hello.session});
    known->second.move_to(peer);
    known->second.last_heard = now;
    known->second.silent = false;
    see_number(hello.highest_seen);
    return welcome(known->second);
  }
  if (hello.door_token != 0) return send(peer, UnknownSession{.session = hello.session});
  const std::vector<SessionId> replaced = doorless_sessions_of(peer);
  if (auto refused = why_refused(hello, replaced.size(), key)) {
    end_sessions(replaced);
    return refuse(peer, hello.session, /*request=*/0, refused->code(), refused->message());
  }
  // In this order, so that what waited for the session before waits for the new one.
  open_session(peer, std::move(hello), now, key);
  end_sessions(replaced);
}

/// One peer's word would else be the end of all numbers.
void PublisherMachine::see_number(VersionNumber number) {
  if (number <= std::max(options_.believed_number_max, versions_.newest())) {
    number_floor_ = std::max(number_floor_, number);
  }
}

std::optional<Error> PublisherMachine::why_refused(const Hello& hello, std::size_t replaced,
                                                   std::string_view key) const {
  if (hello.protocol != kProtocolVersion) {
    return Error(Code::unsupported, format("protocol {} is not spoken here, {} is", hello.protocol, kProtocolVersion));
  }
  if (hello.model != options_.model) {
    return Error(Code::not_found, format("{} is not published here, {} is", hello.model, options_.model));
  }
  if (!is_on_this_host(hello) && !can_fetch(hello)) {
    return Error(
        Code::unsupported,
        channels_offered() == 0
            ? format("{} is published on another host, so its memory cannot be mapped", options_.model)
            : format("{} is published on another host, and no channel is common to both sides", options_.model));
  }
  if (hello.staged && options_.activation.follows) {
    return Error(
        Code::unsupported,
        format("{} is relayed here: a member of its group has to follow the publisher itself", options_.model));
  }
  if (hello.session == 0 || hello.highest_seen > kHighestSeenMax) {
    return Error(Code::invalid_argument, "a hello without session, or that has seen impossible numbers");
  }
  if (sessions_.size() - replaced >= options_.sessions_max) {
    return Error(Code::out_of_space,
                 format("{} has {} subscribers, no more are taken", options_.model, sessions_.size()));
  }
  const auto is_of_key = [&](const auto& entry) { return entry.second.key() == key; };
  if (!key.empty() && sessions_.size() >= options_.sessions_per_key_max) {
    const auto of_key = static_cast<std::size_t>(std::ranges::count_if(sessions_, is_of_key));
    if (of_key >= options_.sessions_per_key_max + replaced) {
      return Error(Code::out_of_space, format("{} has {} subscribers with this key, the most that one key may have",
                                              options_.model, of_key));
    }
  }
  return std::nullopt;
}

void PublisherMachine::open_session(const Peer& peer, Hello hello, Time now, std::string_view key) {
  const SessionId id = hello.session;
  const std::uint64_t serial = ++last_serial_;
  see_number(hello.highest_seen);
  auto [entry, added] =
      sessions_.try_emplace(id, peer, std::move(hello), serial, keyed_word(options_.token_seed, id, serial), key);
  PublisherSession& session = entry->second;
  session.can_fetch = can_fetch(session.hello());
  session.last_heard = now;
  if (session.hello().mode == Mode::every) {
    for (const VersionNumber number : versions_.table().numbers()) {
      if (number > session.hello().after) session.enqueue(number, versions_, options_.every_queue_versions_max);
    }
  }
  welcome(session);
}

std::vector<SessionId> PublisherMachine::doorless_sessions_of(const Peer& peer) const {
  std::vector<SessionId> doorless;
  for (const auto& [id, session] : sessions_) {
    if (session.peer() == peer && !session.door_open) doorless.push_back(id);
  }
  return doorless;
}

void PublisherMachine::end_sessions(const std::vector<SessionId>& ids) {
  for (const SessionId id : ids) end_session(id);
}

void PublisherMachine::end_session(SessionId id) {
  const auto entry = sessions_.find(id);
  if (entry == sessions_.end()) return;
  entry->second.end(versions_);
  close_leases(leases_.of(id), /*by_force=*/true);
  if (entry->second.door_open) actions_.emplace_back(action::CloseDoor{.session = id});
  sessions_.erase(entry);
}

/// Its door says when the last snapshot is dropped; a session without one has nothing that is read.
void PublisherMachine::on_bye(PublisherSession& session, const Bye& bye) {
  const SessionId id = session.hello().session;
  if (!bye.reads_on || !session.door_open) return end_session(id);
  session.leave(versions_);
  close_leases(leases_.of(id), /*by_force=*/true);
}

PublisherSession* PublisherMachine::session_of(const Peer& peer, SessionId id) {
  const auto entry = sessions_.find(id);
  return entry != sessions_.end() && entry->second.peer() == peer ? &entry->second : nullptr;
}

void PublisherMachine::on(PublisherSession& session, const Want& want, Time now) {
  if (!session.accept_request(want.request)) return;
  session.waiting.reset();
  session.channel = want.channel;
  answer(session, want, now);
}

void PublisherMachine::answer(PublisherSession& session, const Want& want, Time now) {
  const auto refuse_want = [&](Code code, std::string message) {
    refuse(session.peer(), want.session, want.request, code, std::move(message));
  };
  if (auto why = why_not_readable(session, want)) return refuse_want(why->code(), why->message());
  if (is_to_wait(session, want)) {
    session.waiting = want;
    return;
  }
  const auto number = next_for(session, want);
  if (!number) return refuse_want(number.error().code(), number.error().message());
  if (!session.holds(*number) && session.holds_count() >= options_.holds_per_session_max) {
    return refuse_want(Code::out_of_space, format("{} versions are held already", session.holds_count()));
  }
  if (!fits_on_wire(record_of(*number).version)) {
    return refuse_want(Code::unsupported, format("the manifest of {} is too large to be sent", *number));
  }
  if (want.channel != ChannelKind::shm) {
    if (auto why = why_no_lease(session, *number)) return refuse_want(why->code(), why->message());
  }
  if (!session.may_be_granted(*number, want.channel, now, options_.grant_again)) return;
  send_grant(session, want, *number, now);
}

Result<VersionNumber> PublisherMachine::next_for(PublisherSession& session, const Want& want) {
  if (session.hello().mode == Mode::latest) return current_for(want);
  session.acknowledge(want.after, versions_);
  auto next = session.first_queued();
  while (next && *next != versions_.newest() && !fits_on_wire(versions_.find(*next)->version)) {
    session.give_up(*next, versions_);
    next = session.first_queued();
  }
  if (!next) return fail(Code::not_found, format("nothing newer than {}", want.after));
  return *next;
}

void PublisherMachine::send_grant(PublisherSession& session, const Want& want, VersionNumber number, Time now) {
  const bool mapped = want.channel == ChannelKind::shm;
  const std::uint64_t grant_id = mapped ? session.grant(number, versions_) : grant_by_lease(session, number, now);
  const HeldVersions::Record& record = record_of(number);
  const CommittedVersion& version = record.version;
  const Architecture& architecture = *version.manifest->architecture;
  const auto& known = want.known_architectures;
  const bool has_architecture = std::find(known.begin(), known.end(), architecture.digest()) != known.end();
  const bool every = session.hello().mode == Mode::every;
  std::uint64_t missed = 0;
  if (every && want.after != 0) {
    missed = commits_.missed_between(want.after, number);
  } else if (every && session.hello().owed_all) {
    missed = commits_.missed_from_start(number);
  } else if (every && session.first_owed() != 0 && number > session.first_owed()) {
    // The first ones gave way in the queue before the subscriber asked.
    missed = 1 + commits_.missed_between(session.first_owed(), number);
  }
  send(session.peer(),
       Grant{.session = want.session,
             .request = want.request,
             .grant = grant_id,
             .number = number,
             .manifest = version.encoded_manifest,
             .architecture = has_architecture ? std::vector<std::byte>() : copy_of(architecture.encoded()),
             .places = mapped ? version.places : std::vector<SegmentPlace>(),
             .slab_bytes = mapped ? version.slab_bytes : std::vector<std::uint64_t>(),
             .gap_before = missed,
             .publish_started_ns = version.publish_started_ns,
             .announced_ns = record.announced_ns,
             .epoch = every || want.exactly != 0 ? 0 : activation_.current().epoch,
             .channel = want.channel,
             .lease = mapped ? 0 : session.lease_of(number)});
}

void PublisherMachine::on(PublisherSession& session, const Held& held, Time) {
  close_leases(session.apply(held, versions_), /*by_force=*/false);
}

void PublisherMachine::on(PublisherSession& session, Ping ping, Time) {
  session.channel_why = std::move(ping.channel_why);
  session.serving = ping.serving;
  session.has_pinged = true;
  if (session.hello().staged) activation_.on_member();
  session.epoch = ping.epoch;
  session.staged = ping.staged;
  session.behind = ping.behind;
  send(session.peer(), Pong{.session = ping.session,
                            .incarnation = options_.incarnation,
                            .newest = versions_.newest(),
                            .current = activation_.current(),
                            .candidate = activation_.candidate(),
                            .turn = activation_.turn(),
                            .ping_ns = ping.sent_ns});
}

bool PublisherMachine::knows(SessionId session) const { return sessions_.contains(session); }

bool PublisherMachine::on_door_open(SessionId session, std::uint64_t token, Time now) {
  const auto entry = sessions_.find(session);
  if (entry == sessions_.end() || entry->second.token() != token || entry->second.door_open) return false;
  entry->second.door_open = true;
  entry->second.last_heard = now;
  return true;
}

void PublisherMachine::on_door_closed(SessionId id, Time now) {
  const auto entry = sessions_.find(id);
  if (entry == sessions_.end() || !entry->second.door_open) return;
  PublisherSession& session = entry->second;
  session.door_open = false;
  const bool wants_more = session.hello().mode == Mode::every || session.channel != ChannelKind::shm;
  const bool may_go_on = wants_more && !session.has_left;
  if (!session.can_fetch || !may_go_on) {
    end_session(id);
    return settle(now);
  }
  session.release_mapped(versions_);
  session.silent = true;  // Most likely it died: its queue is the first to be shed.
}

void PublisherMachine::shed_queues(std::uint64_t bytes_wanted, Time now) {
  std::uint64_t freed = versions_.shed_retained(bytes_wanted);
  for (const bool silent_ones_only : {true, false}) {
    if (freed < bytes_wanted) freed += shed(bytes_wanted - freed, silent_ones_only);
  }
  if (freed < bytes_wanted) end_slow_leases(now);
}

std::uint64_t PublisherMachine::shed(std::uint64_t bytes_wanted, bool silent_ones_only) {
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

bool PublisherMachine::kept_by_queues_alone(VersionNumber number, bool silent_ones_only) const {
  if (number == versions_.newest() || versions_.is_kept(number) || leases_.name(number)) return false;
  return std::all_of(sessions_.begin(), sessions_.end(), [&](const auto& entry) {
    const PublisherSession& session = entry.second;
    const bool waits = session.queue().contains(number);
    return !session.holds(number) && (!waits || session.silent || !silent_ones_only);
  });
}

void PublisherMachine::on_tick(Time now) {
  std::vector<SessionId> expired;
  for (auto& [id, session] : sessions_) {
    if (now - session.last_heard >= options_.silent_after) session.silent = true;
    if (now - session.last_heard >= patience(session)) expired.push_back(id);
  }
  for (const SessionId id : expired) expire(id);
  end_idle_leases(now);
  settle(now);
}

Time PublisherMachine::next_tick() const {
  Time next = activation_.next_tick();
  for (const auto& [id, session] : sessions_) {
    if (!session.silent) next = std::min(next, session.last_heard + options_.silent_after);
    if (const Duration left = patience(session); left != Duration::max())
      next = std::min(next, session.last_heard + left);
  }
  for (const Leases::Course& course : leases_.courses()) next = std::min(next, course.moved + options_.lease_idle);
  return next;
}

std::vector<PublisherAction> PublisherMachine::take_actions() {
  if (auto freed = versions_.take_freed(); !freed.empty()) actions_.emplace_back(action::Free{std::move(freed)});
  return std::exchange(actions_, {});
}

std::vector<PublisherMachine::SessionStat> PublisherMachine::sessions() const {
  std::vector<SessionStat> stats;
  for (const auto& [id, session] : sessions_) {
    stats.push_back({.label = session.hello().label,
                     .pid = session.hello().pid,
                     .mode = session.hello().mode,
                     .silent = session.silent,
                     .serving = session.serving,
                     .held = session.held(),
                     .queued_versions = session.queue().size(),
                     .gaps = session.gaps(),
                     .host = session.hello().host,
                     .serves = session.hello().serves,
                     .channel = session.channel,
                     .channel_why = session.channel_why,
                     .member = session.hello().staged,
                     .epoch = session.epoch,
                     .staged = session.staged,
                     .failed = session.word && session.word->failed ? session.word->failed->message() : std::string(),
                     .behind = session.behind});
  }
  return stats;
}

void PublisherMachine::refuse(const Peer& peer, SessionId session, std::uint64_t request, Code code,
                              std::string message) {
  send(peer, Refusal{.session = session,
                     .request = request,
                     .code = code,
                     .message = std::move(message),
                     .newest = versions_.newest(),
                     .current = activation_.current()});
}

void PublisherMachine::welcome(const PublisherSession& session) {
  send(session.peer(), Welcome{.session = session.hello().session,
                               .run = options_.run,
                               .incarnation = options_.incarnation,
                               .door = is_on_this_host(session.hello()) ? options_.door : std::string(),
                               .door_token = session.token(),
                               .newest = versions_.newest(),
                               .channels = options_.channels,
                               .lease_ms = lease_ms(),
                               .current = activation_.current(),
                               .membership_ms = membership_ms(),
                               .keeps_wants = true,
                               .first_number = options_.first_number});
}

void PublisherMachine::send(const Peer& peer, Message message) {
  actions_.emplace_back(action::Send{.peer = peer, .message = std::move(message)});
}

}  // namespace freshet::protocol
