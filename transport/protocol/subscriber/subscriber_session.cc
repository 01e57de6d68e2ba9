// SPDX-License-Identifier: Apache-2.0
#include "transport/protocol/subscriber/subscriber_session.h"

#include <algorithm>

namespace freshet::protocol {
namespace {

/// Until who refused a Hello, or offers nothing of use, is asked again.
constexpr int kRefusedHelloPauses = 5;
constexpr int kOpenPauses = 10;  ///< How long a door or a channel may take to open.
/// Of retry_after: how soon the Hello of the next session may come, after a session that was open, or was refused a
/// claim. A publisher that opens sessions and ends them at once costs little.
constexpr int kNextHelloParts = 40;

}  // namespace

SubscriberSession::SubscriberSession(const Options& options, const Position& position, Sessions& sessions, Wants& wants,
                                     SubscriberActions& out)
    : options_(options),
      position_(position),
      sessions_(sessions),
      wants_(wants),
      out_(out),
      channel_(options.channels, kOpenPauses * options.retry_after),
      beats_(options.heartbeat) {}

void SubscriberSession::start(Time now) {
  if (phase_ == Phase::stopped) return;
  hello_at_ = now;
  greet_anew(now);
}

void SubscriberSession::greet_anew(Time now) {
  close_channel();
  channel_.leave();
  sessions_.begin_next();
  wants_.begin_session();
  door_token_ = 0;
  claim_until_.reset();
  phase_ = Phase::greeting;
  if (hello_at_ <= now) say_hello(now);
}

void SubscriberSession::stop() {
  close_channel();
  channel_.leave();
  sessions_.end();
  wants_.forget();
  connected_ = false;
  phase_ = Phase::stopped;
}

void SubscriberSession::give_up(Time now) {
  sessions_.leave(is_attached());
  greet_anew(now);
}

void SubscriberSession::say_hello(Time now) {
  hello_at_ = now + options_.retry_after;
  told_device_ = channel_.device();
  out_.send(hello_for(sessions_.current(), door_token_));
}

void SubscriberSession::repeat_hello() {
  if (!is_following()) return;
  told_device_ = channel_.device();
  out_.send(hello_for(sessions_.current(), door_token_));
}

Hello SubscriberSession::hello_for(SessionId session, std::uint64_t door_token) const {
  return {.session = session,
          .model = options_.model,
          .mode = options_.mode,
          .label = options_.label,
          .pid = options_.pid,
          .host = options_.host,
          .highest_seen = std::min(position_.highest_seen(), kHighestSeenMax),
          .after = options_.mode == Mode::every ? position_.number() : 0,
          .door_token = door_token,
          .channels = channel_.selector().options().usable,
          .staged = options_.staged,
          .serves = options_.serves,
          .owed_all = position_.is_owed_all(),
          .device = channel_.device()};
}

bool SubscriberSession::takes(const Welcome& welcome, Time now) {
  if (welcome.session != sessions_.current()) return false;
  if (is_following()) {
    // One session's Hello reached two publishers, since the address was looked up anew in between: what is said now may
    // go to the one whose door or channel this is not.
    if (welcome.incarnation != incarnation_) return give_up(now), false;
    claim_until_.reset();
    wants_.forget_waiting();  // It may have been said to the connection that broke.
    return heard(now), false;
  }
  if (phase_ != Phase::greeting) return false;
  heard(now);
  if (welcome.incarnation != incarnation_) channel_.selector().forget_failures();
  incarnation_ = welcome.incarnation;
  door_token_ = welcome.door_token;
  wants_.set_kept(welcome.keeps_wants);
  return true;
}

void SubscriberSession::attach(const Welcome& welcome, Time now) {
  channel_.take_offers(welcome);
  choose_channel(now);
}

void SubscriberSession::choose_channel(Time now) {
  if (!channel_.choose(now)) {
    last_refusal_ = channel_.refusal();
    out_.send(Bye{.session = sessions_.current()});
    hello_at_ = now + kRefusedHelloPauses * options_.retry_after;
    return give_up(now);
  }
  // A session that may outlive its door is kept alive while one is knocked at.
  if (phase_ == Phase::greeting) beats_.begin(channel_.has_data_channels() ? now + options_.heartbeat : Time::max());
  phase_ = Phase::following;
  if (channel_.is_due(now)) open_channel(now);
}

void SubscriberSession::open_channel(Time now) {
  const SessionId session = sessions_.current();
  channel_.ask(now);
  if (channel_.is_fetching()) {
    return out_.add(action::OpenChannel{.session = session, .offer = *channel_.offer(), .why = channel_.why()});
  }
  if (sessions_.has_door(session)) return channel_.on_open();
  phase_ = Phase::knocking;
  out_.add(action::OpenDoor{.session = session, .door = channel_.offer()->address, .token = door_token_});
}

void SubscriberSession::close_channel() {
  wants_.forget_waiting();
  if (channel_.is_fetching() && channel_.is_asked()) out_.add(action::CloseChannel{.session = sessions_.current()});
}

void SubscriberSession::channel_failed(const std::string& why, Time now) {
  channel_.failed(why, now);
  close_channel();
  if (phase_ == Phase::knocking) out_.add(action::LeaveDoor{.session = sessions_.current()});
  wants_.forget();
  choose_channel(now);
}

void SubscriberSession::consider_better_channel(Time now) {
  if (!is_open() || !wants_.is_idle() || !channel_.has_better(now)) return;
  close_channel();
  choose_channel(now);
}

void SubscriberSession::on_reached(Time now) {
  if (phase_ == Phase::greeting) say_hello(now);
}

bool SubscriberSession::on_door_open(SessionId session, Time now) {
  if (phase_ != Phase::knocking || session != sessions_.current()) {
    if (!sessions_.has_door(session)) out_.add(action::LeaveDoor{.session = session});
    return false;
  }
  sessions_.on_door_open(door_token_);
  channel_.on_open();
  hello_at_ = std::min(hello_at_, now + options_.retry_after / kNextHelloParts);
  phase_ = Phase::following;
  if (told_device_ != channel_.device()) repeat_hello();
  return true;
}

void SubscriberSession::on_door_closed(SessionId session, Time now) {
  const bool is_current = session == sessions_.current();
  if (is_current && phase_ == Phase::knocking && channel_.has_other(now)) {
    return channel_failed("the door did not open", now);
  }
  if (is_current && is_following() && channel_.is_fetching()) return sessions_.on_door_lost();
  sessions_.forget(session);
  if (!is_current || !is_attached()) return;
  connected_ = false;
  // A claim of it may have been said, and need not be waited for.
  if (is_following()) hello_at_ = std::min(hello_at_, now + options_.retry_after / kNextHelloParts);
  greet_anew(now);
}

bool SubscriberSession::on_channel_open(SessionId session, Time now) {
  const bool is_asked = channel_.is_fetching() && channel_.is_asked() && !channel_.is_open();
  if (session != sessions_.current() || !is_asked) return false;
  channel_.on_open();
  hello_at_ = std::min(hello_at_, now + options_.retry_after / kNextHelloParts);
  return true;
}

void SubscriberSession::on_channel_closed(SessionId session, const Error& why, Time now) {
  if (session != sessions_.current() || !channel_.is_fetching() || !channel_.is_asked()) return;
  const bool was_open = channel_.is_open();
  channel_.on_closed();
  channel_failed(why.message(), now);
  // Perhaps the publisher itself is gone.
  if (was_open && is_following()) claim(now);
}

void SubscriberSession::on_channel_progress(SessionId session, Time now) {
  if (session != sessions_.current() || !channel_.is_fetching() || !channel_.is_open()) return;
  heard(now);
  if (claim_until_) claim_until_ = now + options_.silent_after;
}

void SubscriberSession::on_unknown(SessionId session, Time now) {
  if (phase_ == Phase::idle || phase_ == Phase::stopped) return;
  if (session != sessions_.current()) {
    if (const auto token = sessions_.claim_drained(session)) out_.send(hello_for(session, *token));
    return;
  }
  // A session without a door leaves nothing behind: no use to insist.
  const bool insist = !channel_.is_fetching() || !claim_until_;
  if (is_following() && insist) return claim(now);
  if (is_following()) hello_at_ = std::min(hello_at_, now + options_.retry_after / kNextHelloParts);
  give_up(now);
}

void SubscriberSession::claim(Time now) {
  if (claim_until_) return;
  claim_until_ = now + options_.silent_after;
  say_hello(now);
}

void SubscriberSession::on_refused(const Refusal& refusal, Time now) {
  if (refusal.session != sessions_.current() || refusal.request != 0) return;
  // The model is not there any more, so the session is not either; whoever publishes it next hears a Hello without it.
  if (is_following() && claim_until_ && channel_.is_fetching() && refusal.code == Code::not_found) {
    hello_at_ = std::min(hello_at_, now + options_.retry_after / kNextHelloParts);
    return give_up(now);
  }
  if (phase_ != Phase::greeting) return;
  last_refusal_ = refusal.message;
  hello_at_ = now + kRefusedHelloPauses * options_.retry_after;
}

void SubscriberSession::heard(Time now) {
  last_heard_ = now;
  connected_ = true;
}

bool SubscriberSession::minds_silence() const {
  return is_following() && (channel_.is_fetching() ? !claim_until_ : elsewhere_);
}

bool SubscriberSession::tick(Time now) {
  if ((connected_ || minds_silence()) && now - *last_heard_ >= options_.silent_after) {
    connected_ = false;
    if (minds_silence() && channel_.is_fetching()) {
      claim(now);
    } else if (minds_silence()) {
      // Its door is open, so it lives, but it is stopped: what it handed out stays as it is, and is served meanwhile.
      if (const auto abandoned = wants_.take_installing()) sessions_.abandon(abandoned->session, abandoned->number);
      give_up(now);
    }
  }
  if (phase_ == Phase::greeting && now >= hello_at_) say_hello(now);
  if (phase_ == Phase::knocking && channel_.is_late(now)) {
    channel_.has_other(now) ? channel_failed("the door did not open in time", now) : give_up(now);
    return false;
  }
  if (!is_following()) return phase_ == Phase::knocking;
  if (claim_until_ && now >= *claim_until_) return give_up(now), false;
  if (claim_until_ && now >= hello_at_) say_hello(now);
  if (channel_.is_due(now)) open_channel(now);
  if (channel_.is_late(now)) channel_failed("it did not open in time", now);
  return true;
}

Time SubscriberSession::next_tick() const {
  if (phase_ == Phase::idle || phase_ == Phase::stopped) return Time::max();
  const Time silent_at = connected_ || minds_silence() ? *last_heard_ + options_.silent_after : Time::max();
  if (phase_ == Phase::greeting) return std::min(silent_at, hello_at_);
  const Time next = std::min({silent_at, beats_.next(), channel_.next_tick()});
  return claim_until_ && is_following() ? std::min({next, hello_at_, *claim_until_}) : next;
}

}  // namespace freshet::protocol
