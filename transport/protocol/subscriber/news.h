// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The publisher's last news of its versions, those that it cannot give, and until when this is to be believed. One
/// thread at a time.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "transport/protocol/messages.h"
#include "transport/protocol/subscriber/position.h"

namespace freshet::protocol {

class News {
 public:
  VersionNumber newest() const { return newest_; }
  const Current& current() const { return current_; }
  /// Announcements.
  std::uint64_t heard() const { return heard_; }
  /// Takes a Welcome: news of another incarnation's versions count no more.
  void on_welcome(const Welcome& welcome, bool same_publisher);
  void on_announcement(const Announcement& announcement);
  void on_newest(VersionNumber newest) { newest_ = std::max(newest_, newest); }
  /// The publisher knows best: whatever news had said otherwise was wrong.
  void correct_newest(VersionNumber newest) { newest_ = newest; }
  void correct_current(const Current& pair) { current_ = pair; }
  /// News of the pair, in any order: it only grows. False when it is none.
  bool on_current(const Current& pair);

  /// A Pong says what was current at some time after its Ping was sent. Only one that finds us where everybody is to be
  /// keeps us in good standing.
  void on_answered(const Pong& pong, Mode mode, const Position& position, Time now);
  /// The served version was the current one (for `every`: the newest) at that time, or later.
  std::optional<Time> confirmed_at() const { return confirmed_at_; }
  void forget_confirmed() { confirmed_at_.reset(); }
  /// From then on a member does not know any more what was decided.
  Time lapses_at() const { return standing_from_ ? *standing_from_ + membership_ : Time::min(); }

  /// Asking for these cannot help.
  void set_hopeless(VersionNumber up_to, const Current& pair);
  bool has_newer_than(VersionNumber number) const { return newest_ > std::max(number, hopeless_up_to_); }
  bool is_hopeless() const { return current_.epoch == hopeless_.epoch && current_.version == hopeless_.version; }
  /// The publisher has not got what is current: not asked for again before its next news, or this. Meanwhile a
  /// candidate can be staged.
  void set_absent(std::string why, Time until);
  void forget_absent() { absent_until_.reset(); }
  std::optional<Time> absent_until() const { return absent_until_; }
  const std::string& absent_why() const { return absent_why_; }

 private:
  Current current_;
  VersionNumber newest_ = 0;
  std::uint64_t heard_ = 0;
  Current hopeless_;
  VersionNumber hopeless_up_to_ = 0;  ///< For `every`.
  std::optional<Time> absent_until_;
  std::string absent_why_;
  Duration membership_ = kMembershipDefault;
  std::optional<Time> standing_from_;
  std::optional<Time> confirmed_at_;
};

}  // namespace freshet::protocol
