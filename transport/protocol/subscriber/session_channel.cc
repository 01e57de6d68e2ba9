// SPDX-License-Identifier: Apache-2.0
#include "transport/protocol/subscriber/session_channel.h"

#include <utility>

namespace freshet::protocol {
namespace {

constexpr int kFailuresMax = 3;  ///< Installs that may fail in a row until the channel is held to be at fault.

}  // namespace

void SessionChannel::take_offers(const Welcome& welcome) {
  offers_ = welcome.channels;
  std::erase_if(offers_, [](const ChannelOffer& offer) { return offer.kind == ChannelKind::shm; });
  same_host_ = !welcome.door.empty() || offers_.empty();
  if (same_host_) offers_.push_back({.kind = ChannelKind::shm, .address = welcome.door});
}

bool SessionChannel::choose(Time now) {
  auto choice = selector_.choose(offers_, same_host_, now);
  refusal_ = choice ? std::string() : choice.error().message();
  if (!choice) return false;
  channel_ = Channel{.offer = choice->offer, .why = std::move(choice->why), .open_at = choice->not_before};
  return true;
}

bool SessionChannel::has_other(Time now) const {
  if (!channel_) return false;
  std::vector<ChannelOffer> others = offers_;
  std::erase_if(others, [&](const ChannelOffer& offer) { return offer.kind == channel_->offer.kind; });
  return selector_.choose(others, same_host_, now).has_value();
}

bool SessionChannel::has_better(Time now) const {
  const auto choice = selector_.choose(offers_, same_host_, now);
  return choice && choice->offer != channel_->offer && choice->not_before <= now;
}

void SessionChannel::ask(Time now) {
  channel_->asked = true;
  channel_->give_up_at = now + open_within_;
}

void SessionChannel::worked(ChannelKind kind) {
  selector_.worked(kind);
  if (channel_) channel_->failures = 0;
}

bool SessionChannel::count_failure(Time now) {
  if (!is_open() || ++channel_->failures < kFailuresMax) return false;
  return is_fetching() || has_other(now);
}

Time SessionChannel::next_tick() const {
  if (!channel_ || channel_->open) return Time::max();
  return channel_->asked ? channel_->give_up_at : channel_->open_at;
}

}  // namespace freshet::protocol
