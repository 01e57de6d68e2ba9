// SPDX-License-Identifier: Apache-2.0
#include "transport/protocol/publisher/publisher_machine.h"

#include <limits>
#include <set>
#include <type_traits>
#include <utility>

#include "core/base/check.h"

namespace freshet::protocol {
namespace {

Activation::Options activation_options(const PublisherOptions& options) {
  Activation::Options activation = options.activation;
  activation.model = options.model;
  return activation;
}

std::uint32_t milliseconds_in(Duration duration) {
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(duration).count();
  return static_cast<std::uint32_t>(std::clamp<std::int64_t>(ms, 1, std::numeric_limits<std::uint32_t>::max()));
}

}  // namespace

PublisherMachine::PublisherMachine(Options options)
    : options_(std::move(options)), activation_(activation_options(options_)) {}

void PublisherMachine::on_committed(Committed version, Time now) {
  FRESHET_CHECK(version.manifest != nullptr && version.manifest->architecture != nullptr);
  FRESHET_CHECK(version.segments.size() >= version.places.size());
  const VersionNumber number = version.manifest->name.number;
  grants_.on_committed(number, version.missed_before);
  arrived_ = true;
  // Those who fetch it as it comes go on: all of it is there now.
  versions_.add_newest(std::move(version), now.time_since_epoch().count());
  sessions_.on_committed(number);
  announced_.note(number, now);
  for (auto& [id, session] : sessions_.all()) session.staleness.update(session.serving, announced_);
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

void PublisherMachine::on_coming(CommittedVersion version, Time now) {
  FRESHET_CHECK(version.manifest != nullptr && version.manifest->name.number > versions_.newest());
  on_not_coming(versions_.coming(), now);
  arrived_ = true;
  versions_.set_coming(std::move(version), now.time_since_epoch().count());
  announced_turn_ = 0;  // Whoever asked for it too early asks again.
  settle(now);
}

void PublisherMachine::on_not_coming(VersionNumber number, Time now) {
  if (number == 0 || number != versions_.coming()) return;
  versions_.forget_coming();
  sessions_.end_leases(leases_.of_coming(number), /*by_force=*/false);
  settle(now);
}

void PublisherMachine::on_message(const Peer& peer, Message message, Time now, std::string_view key) {
  dispatch(peer, std::move(message), now, key);
  settle(now);
}

void PublisherMachine::dispatch(const Peer& peer, Message message, Time now, std::string_view key) {
  if (auto* hello = std::get_if<Hello>(&message)) return on(peer, std::move(*hello), now, key);
  if (auto* bye = std::get_if<Bye>(&message)) {
    if (PublisherSession* session = sessions_.find(peer, bye->session)) sessions_.on_bye(*session, *bye);
    return;
  }
  if (const auto* ask = std::get_if<Activate>(&message)) {
    return activation_.on_ask(peer, *ask, versions_.table().numbers(), now);
  }
  const auto in_session = [&](const auto& m) {
    using M = std::decay_t<decltype(m)>;
    if constexpr (std::is_same_v<M, Want> || std::is_same_v<M, Held> || std::is_same_v<M, Ping> ||
                  std::is_same_v<M, Staged>) {
      PublisherSession* session = sessions_.find(peer, m.session);
      if (session == nullptr || session->has_left) return out_.send(peer, UnknownSession{.session = m.session});
      session->hear(now);
      if constexpr (std::is_same_v<M, Held>) {
        leases_.close(session->apply(m, versions_), /*by_force=*/false);
      } else {
        on(*session, m, now);
      }
    }
  };
  std::visit(in_session, message);
}

void PublisherMachine::on(const Peer& peer, Hello hello, Time now, std::string_view key) {
  const SessionId id = hello.session;
  const auto session = sessions_.admit(peer, std::move(hello), now, key);
  if (!session) return refuse(peer, id, /*request=*/0, session.error());
  if (*session == nullptr) return out_.send(peer, UnknownSession{.session = id});
  welcome(**session);
  PublisherSession& admitted = sessions_.all().at(id);
  admitted.staleness.update(admitted.serving, announced_);
}

void PublisherMachine::on(PublisherSession& session, const Want& want, Time now) {
  activation_.on_epoch_seen(want.after_epoch, now);
  if (!session.accept_request(want.request)) return;
  session.waiting.reset();
  session.postponed.reset();
  // Which memory it maps is the grant's matter.
  if (!is_mapped(want.channel) || !is_mapped(session.channel)) session.channel = want.channel;
  if (want.serving != 0) {
    session.serving = want.serving;
    session.staleness.update(want.serving, announced_);
  }
  answer(session, want, now);
}

void PublisherMachine::on(PublisherSession& session, const Ping& ping, Time now) {
  activation_.on_epoch_seen(ping.epoch, now);
  session.channel_why = ping.channel_why;
  if (ping.serving == 0 && session.serving != 0) session.staleness.withdraw(now);
  session.serving = ping.serving;
  session.staleness.update(ping.serving, announced_);
  session.has_pinged = true;
  if (session.hello().staged) activation_.on_member();
  session.epoch = ping.epoch;
  session.staged = ping.staged;
  session.behind = ping.behind;
  out_.send(session.peer(), Pong{.session = ping.session,
                                 .incarnation = options_.incarnation,
                                 .newest = versions_.newest(),
                                 .current = activation_.current(),
                                 .candidate = activation_.candidate(),
                                 .turn = activation_.turn(),
                                 .ping_ns = ping.sent_ns});
}

void PublisherMachine::on(PublisherSession& session, const Staged& staged, Time) { session.hear(staged); }

void PublisherMachine::answer(PublisherSession& session, const Want& want, Time now) {
  const Status answered = grants_.answer(session, want, now);
  if (!answered) refuse(session.peer(), want.session, want.request, answered.error());
}

void PublisherMachine::refuse(const Peer& peer, SessionId session, std::uint64_t request, const Error& why) {
  out_.send(peer, Refusal{.session = session,
                          .request = request,
                          .code = why.code(),
                          .message = why.message(),
                          .newest = versions_.newest(),
                          .current = activation_.current()});
}

void PublisherMachine::welcome(const PublisherSession& session) {
  // A subscriber that is older than a kind of channels does not know the kind's number.
  std::vector<ChannelOffer> offers = options_.channels;
  std::erase_if(offers, [&](const ChannelOffer& offer) { return (session.hello().channels & bit(offer.kind)) == 0; });
  const bool is_near = options_.host.empty() || session.hello().host == options_.host;
  out_.send(session.peer(), Welcome{.session = session.hello().session,
                                    .run = options_.run,
                                    .incarnation = options_.incarnation,
                                    .door = is_near ? options_.door : std::string(),
                                    .door_token = session.token(),
                                    .newest = versions_.newest(),
                                    .channels = std::move(offers),
                                    .lease_ms = milliseconds_in(options_.lease_silence),
                                    .current = activation_.current(),
                                    .membership_ms = milliseconds_in(options_.activation.membership),
                                    .keeps_wants = true,
                                    .first_number = options_.first_number});
}

void PublisherMachine::on_door_closed(SessionId session, Time now) {
  if (sessions_.on_door_closed(session)) settle(now);
}

void PublisherMachine::shed_queues(std::uint64_t bytes_wanted, Time now) {
  std::uint64_t freed = versions_.shed_retained(bytes_wanted);
  for (const bool silent_ones_only : {true, false}) {
    if (freed < bytes_wanted) freed += sessions_.shed(bytes_wanted - freed, silent_ones_only);
  }
  // By force: whoever takes nothing of what it asked for would else keep the memory.
  if (freed < bytes_wanted) sessions_.end_leases(leases_.slow(now), /*by_force=*/true);
}

void PublisherMachine::on_current_swapped(Result<Current> record, Time now) {
  activation_.on_swapped(std::move(record), now);
  settle(now);
}

void PublisherMachine::on_current_seen(const Current& pair, Time now) {
  activation_.on_seen(pair, now);
  settle(now);
}

void PublisherMachine::on_removed() {
  for (const auto& [id, session] : sessions_.all()) {
    if (!session.door_open) out_.send(session.peer(), UnknownSession{.session = id});
  }
}

void PublisherMachine::on_tick(Time now) {
  sessions_.tick(now);
  answer_postponed(now);
  settle(now);
}

void PublisherMachine::settle(Time now) {
  settled_at_ = now;
  activation_.consider(activation_.needs_followers() ? followers() : std::vector<Activation::Follower>(), now);
  versions_.keep(activation_.wanted());
  auto swap = activation_.take_swap();
  answer_waiting(now);
  if (activation_.turn() != announced_turn_) announce(now);
  // Last: it wakes a thread that writes, and nobody who is told above waits for it.
  if (swap) out_.add(action::SwapCurrent{.expected = swap->expected, .desired = swap->desired});
  for (auto& answer : activation_.take_answers()) out_.send(answer.peer, std::move(answer.activated));
}

std::vector<Activation::Follower> PublisherMachine::followers() const {
  std::vector<Activation::Follower> followers;
  for (const auto& [id, session] : sessions_.all()) {
    const Hello& hello = session.hello();
    // Until its first ping nothing is known of it, and it knows nothing of us.
    if (hello.mode != Mode::latest || !session.has_pinged || session.has_left) continue;
    followers.push_back({.session = id,
                         .hello = &hello,
                         .member = hello.staged,
                         .last_heard = session.last_heard,
                         .serving = session.serving,
                         .epoch = session.epoch,
                         .behind = session.behind,
                         .word = session.word() ? &*session.word() : nullptr});
  }
  return followers;
}

void PublisherMachine::answer_waiting(Time now) {
  const Current current = activation_.current();
  const bool arrived = std::exchange(arrived_, false);
  if (current == answered_ && !arrived) return;
  answered_ = current;
  for (auto& [id, session] : sessions_.all()) {
    if (!session.waiting || session.silent) continue;
    // Of what it has already, under a later epoch, the news is enough. And a relay may not have got it yet.
    if (session.waiting->after == current.version || !grants_.current_for(*session.waiting)) continue;
    const Want want = *std::exchange(session.waiting, std::nullopt);
    answer(session, want, now);
  }
}

void PublisherMachine::answer_postponed(Time now) {
  for (auto& [id, session] : sessions_.all()) {
    if (!session.postponed || session.postponed->until > now) continue;
    const Want want = std::exchange(session.postponed, std::nullopt)->want;
    if (!session.silent) answer(session, want, now);  // It may be stopped, and asks again if not.
  }
}

void PublisherMachine::announce(Time now) {
  announced_turn_ = activation_.turn();
  std::set<Peer> peers;
  for (const auto& [id, session] : sessions_.all()) {
    if (!session.silent) peers.insert(session.peer());
  }
  out_.add(action::Announce{.announcement = {.model = options_.model,
                                             .incarnation = options_.incarnation,
                                             .number = versions_.newest(),
                                             .announced_ns = now.time_since_epoch().count(),
                                             .current = activation_.current(),
                                             .candidate = activation_.candidate(),
                                             .turn = activation_.turn()},
                            .peers = {peers.begin(), peers.end()}});
}

std::vector<PublisherAction> PublisherMachine::take_actions() {
  if (auto freed = versions_.take_freed(); !freed.empty()) out_.add(action::Free{std::move(freed)});
  return out_.take();
}

std::vector<SubscriberStat> PublisherMachine::sessions() const {
  std::vector<SubscriberStat> stats;
  for (const auto& [id, session] : sessions_.all()) stats.push_back(session.stat(settled_at_));
  return stats;
}

}  // namespace freshet::protocol
