// SPDX-License-Identifier: Apache-2.0
#pragma once

/// How the versions of a subscriber's session are read: the door or a data channel, out of what the publisher offers,
/// from when it is chosen until it is given up. No channel is there until the first choose(). One thread at a time.

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "transport/protocol/channel_selector.h"
#include "transport/protocol/messages.h"

namespace freshet::protocol {

class SessionChannel {
 public:
  /// `open_within`: how long a door or a channel may take to open.
  SessionChannel(ChannelSelector::Options options, Duration open_within)
      : selector_(options), open_within_(open_within) {}

  void take_offers(const Welcome& welcome);
  bool has_data_channels() const { return offers_.size() > 1; }
  /// The best of the offers, not yet asked for. False when none can be used: refusal() says why.
  bool choose(Time now);
  bool has_other(Time now) const;
  bool has_better(Time now) const;
  void leave() { channel_.reset(); }

  /// From now on versions are mapped in that GPU's memory too. False: it was so before.
  bool take_device(const std::string& uuid) { return std::exchange(device_, uuid) != uuid; }
  const std::string& device() const { return device_; }

  void ask(Time now);
  void on_open() { channel_->open = true; }
  /// There is nothing left to be closed.
  void on_closed() { channel_->asked = false; }
  void failed(std::string why, Time now) { selector_.failed(channel_->offer.kind, std::move(why), now); }
  void worked(ChannelKind kind);
  /// An Install failed. Whether the channel is to be held at fault for that.
  bool count_failure(Time now);

  bool is_fetching() const { return channel_ && channel_->offer.kind != ChannelKind::shm; }
  bool is_asked() const { return channel_ && channel_->asked; }
  bool is_open() const { return channel_ && channel_->open; }
  bool is_due(Time now) const { return channel_ && !channel_->asked && now >= channel_->open_at; }
  /// It was asked for, and does not open.
  bool is_late(Time now) const { return is_asked() && !is_open() && now >= channel_->give_up_at; }
  Time next_tick() const;

  /// The one in use or being opened; null while there is no session.
  const ChannelOffer* offer() const { return channel_ ? &channel_->offer : nullptr; }
  std::string why() const { return channel_ ? channel_->why : std::string(); }
  /// Why none of the channels that the publisher offered last can be used; empty if one can.
  const std::string& refusal() const { return refusal_; }
  ChannelSelector& selector() { return selector_; }
  const ChannelSelector& selector() const { return selector_; }

 private:
  struct Channel {
    ChannelOffer offer;
    std::string why;
    Time open_at{};     ///< Not asked for before.
    Time give_up_at{};  ///< Once asked for.
    bool asked = false;
    bool open = false;
    int failures = 0;  ///< Installs that failed in a row.
  };

  ChannelSelector selector_;
  const Duration open_within_;
  std::vector<ChannelOffer> offers_;  ///< The door among them.
  bool same_host_ = false;
  std::optional<Channel> channel_;
  std::string refusal_;
  std::string device_;
};

}  // namespace freshet::protocol
