// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "transport/protocol/subscriber_machine.h"

// How versions are read: which channel the session uses, and what happens when it fails.

namespace freshet::protocol {
namespace {

constexpr int kOpenPauses = 10;  ///< How long a door or a channel may take to open.
constexpr int kFailuresMax = 3;  ///< Installs that may fail in a row until the channel is held to be at fault.

}  // namespace

void SubscriberMachine::take_offers(const Welcome& welcome) {
  offers_ = welcome.channels;
  std::erase_if(offers_, [](const ChannelOffer& offer) { return offer.kind == ChannelKind::shm; });
  same_host_ = !welcome.door.empty() || offers_.empty();
  if (same_host_) offers_.push_back({.kind = ChannelKind::shm, .address = welcome.door});
}

void SubscriberMachine::choose_channel(Time now) {
  auto choice = selector_.choose(offers_, same_host_, now);
  channel_refusal_ = choice ? std::string() : choice.error().message();
  if (!choice) {
    last_refusal_ = channel_refusal_;
    send(Bye{.session = current_});
    hello_at_ = now + kRefusedHelloPauses * options_.retry_after;
    leave_current_session();
    return greet_anew(now);
  }
  // A session that may outlive its door is kept alive while one is knocked at.
  if (phase_ == Phase::greeting) beat_at_ = offers_.size() > 1 ? now + options_.heartbeat : Time::max();
  phase_ = Phase::following;
  channel_ = Channel{.offer = choice->offer, .why = std::move(choice->why), .open_at = choice->not_before};
  if (channel_->open_at <= now) open_channel(now);
}

void SubscriberMachine::open_channel(Time now) {
  channel_->asked = true;
  channel_->give_up_at = now + kOpenPauses * options_.retry_after;
  if (is_fetching()) {
    actions_.emplace_back(action::OpenChannel{.session = current_, .offer = channel_->offer, .why = channel_->why});
    return;
  }
  if (sessions_[current_].door_open) {
    channel_->open = true;
    return;
  }
  phase_ = Phase::knocking;
  knock_until_ = channel_->give_up_at;
  actions_.emplace_back(action::OpenDoor{.session = current_, .door = channel_->offer.address, .token = door_token_});
}

void SubscriberMachine::close_channel() {
  waiting_.reset();
  if (is_fetching() && channel_->asked) actions_.emplace_back(action::CloseChannel{.session = current_});
}

/// The next best takes over. What was asked for through the one that failed is asked for anew: the publisher's queue
/// keeps it until it is acknowledged.
void SubscriberMachine::channel_failed(const std::string& why, Time now) {
  selector_.failed(channel_->offer.kind, why, now);
  close_channel();
  if (phase_ == Phase::knocking) actions_.emplace_back(action::LeaveDoor{.session = current_});
  want_.reset();
  choose_channel(now);
}

bool SubscriberMachine::has_other_channel(Time now) const {
  if (!channel_) return false;
  std::vector<ChannelOffer> others = offers_;
  std::erase_if(others, [&](const ChannelOffer& offer) { return offer.kind == channel_->offer.kind; });
  return selector_.choose(others, same_host_, now).has_value();
}

void SubscriberMachine::on_channel_open(SessionId session, Time now) {
  if (session != current_ || !is_fetching() || !channel_->asked || channel_->open) return;
  channel_->open = true;
  want_not_before_ = now;
  beat(now);
  consider_want(now);
}

void SubscriberMachine::on_channel_closed(SessionId session, Error why, Time now) {
  if (session != current_ || !is_fetching() || !channel_->asked) return;
  const bool was_open = channel_->open;
  channel_->asked = false;  // There is nothing left to be closed.
  channel_failed(why.message(), now);
  // Perhaps the publisher itself is gone.
  if (was_open && phase_ == Phase::following) claim_session(now);
}

void SubscriberMachine::on_channel_progress(SessionId session, Time now) {
  if (session != current_ || !is_fetching() || !channel_->open) return;
  heard(now);
  if (claim_until_) claim_until_ = now + options_.silent_after;
}

/// Bytes that came over a wire and are not what the manifest says: the wire, or a relay, may be at fault.
bool SubscriberMachine::is_fetched_again(const Installing& failed, const Error& error, Time now) {
  if (error.code() != Code::corrupt || unproved_ == failed.number) return false;
  unproved_ = failed.number;
  want_not_before_ = now;
  if (failed.session == current_ && is_fetching()) channel_failed(error.message(), now);
  return true;
}

void SubscriberMachine::count_install_failure(const Error& error, Time now) {
  if (!channel_ || !channel_->open || ++channel_->failures < kFailuresMax) return;
  if (is_fetching() || has_other_channel(now)) channel_failed(error.message(), now);
}

/// Between two versions, so that none waits for it.
void SubscriberMachine::consider_better_channel(Time now) {
  if (phase_ != Phase::following || !channel_ || !channel_->open || want_ || installing_) return;
  const auto choice = selector_.choose(offers_, same_host_, now);
  if (!choice || choice->offer == channel_->offer || choice->not_before > now) return;
  close_channel();
  choose_channel(now);
}

void SubscriberMachine::on_knock_unanswered(Time now) {
  if (has_other_channel(now)) return channel_failed("the door did not open in time", now);
  leave_current_session();
  greet_anew(now);
}

void SubscriberMachine::tick_channel(Time now) {
  if (phase_ != Phase::following || !channel_ || channel_->open) return;
  if (!channel_->asked && now >= channel_->open_at) return open_channel(now);
  if (channel_->asked && now >= channel_->give_up_at) channel_failed("it did not open in time", now);
}

Time SubscriberMachine::next_channel_tick() const {
  if (!channel_ || channel_->open) return Time::max();
  return channel_->asked ? channel_->give_up_at : channel_->open_at;
}

}  // namespace freshet::protocol
