// SPDX-License-Identifier: Apache-2.0
#include "transport/protocol/subscriber/subscriber_machine.h"

#include <type_traits>
#include <utility>

namespace freshet::protocol {

SubscriberMachine::SubscriberMachine(Options options) : options_(std::move(options)) {}

void SubscriberMachine::on_message(Message message, Time now) {
  const auto dispatch = [&](auto&& m) {
    using M = std::decay_t<decltype(m)>;
    if constexpr (std::is_same_v<M, Welcome>) on(m, now);
    if constexpr (std::is_same_v<M, Grant>) versions_.on_grant(std::forward<decltype(m)>(m), now);
    if constexpr (std::is_same_v<M, Refusal>) {
      session_.on_refused(m, now);
      versions_.on_refused(m, now);
    }
    if constexpr (std::is_same_v<M, Pong>) versions_.on_pong(m, now);
    if constexpr (std::is_same_v<M, UnknownSession>) session_.on_unknown(m.session, now);
    if constexpr (std::is_same_v<M, Announcement>) versions_.on_announcement(m, now);
  };
  std::visit(dispatch, std::move(message));
}

void SubscriberMachine::on(const Welcome& welcome, Time now) {
  const bool same_publisher = welcome.incarnation == session_.incarnation();
  if (!session_.takes(welcome, now)) return;
  if (versions_.on_welcome(welcome, same_publisher, now)) return session_.attach(welcome, now);
  session_.start(now);  // So that the publisher too counts from there.
}

void SubscriberMachine::on_door_open(SessionId session, Time now) {
  if (session_.on_door_open(session, now)) versions_.on_open(now);
}

void SubscriberMachine::on_channel_open(SessionId session, Time now) {
  if (session_.on_channel_open(session, now)) versions_.on_open(now);
}

void SubscriberMachine::on_reached(Time now) {
  session_.on_reached(now);
  // Whoever is there now may not know the session, and says so.
  if (session_.is_following()) versions_.beat(now);
}

void SubscriberMachine::on_higher_seen(VersionNumber number, Time) {
  if (position_.see(number)) session_.repeat_hello();
}

void SubscriberMachine::on_stop(Time) {
  versions_.abandon_install();
  session_.stop();
}

Status SubscriberMachine::stage(VersionNumber number, Time now) {
  if (!options_.staged) {
    return fail(Code::failed_precondition, "stage() needs a subscriber that was opened with `staged`");
  }
  return versions_.stage(number, now);
}

Status SubscriberMachine::bring(VersionNumber number, Time now) {
  if (options_.mode == Mode::every || options_.staged) {
    return fail(Code::failed_precondition,
                options_.staged ? "a member of a group stages versions: use stage() and staged_snapshot()"
                                : "a subscriber of every version gets each one by next(), and none by its number");
  }
  return versions_.stage(number, now);
}

void SubscriberMachine::probe(Time now) {
  if (session_.is_following()) versions_.beat(now);
}

void SubscriberMachine::on_tick(Time now) {
  if (!session_.tick(now)) return;
  if (session_.is_attached() && session_.beats().is_due(now)) {
    versions_.beat(now);
    session_.consider_better_channel(now);
  }
  versions_.tick(now);
}

std::optional<Time> SubscriberMachine::lapses_at() const {
  return options_.staged ? std::optional(news().lapses_at()) : std::nullopt;
}

std::string_view SubscriberMachine::absent_why() const {
  const bool is_behind = news().current().comes_after(position_.serving_epoch(), position_.serving());
  return is_behind ? std::string_view(news().absent_why()) : std::string_view();
}

}  // namespace freshet::protocol
