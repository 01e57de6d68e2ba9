// SPDX-License-Identifier: Apache-2.0
#include "transport/protocol/subscriber/news.h"

#include <utility>

namespace freshet::protocol {

void News::on_welcome(const Welcome& welcome, bool same_publisher) {
  membership_ = welcome.membership_ms != 0 ? std::chrono::milliseconds(welcome.membership_ms) : kMembershipDefault;
  if (same_publisher) return on_newest(welcome.newest);
  newest_ = welcome.newest;
  hopeless_up_to_ = 0;
  hopeless_ = {};
  // It starts from what the directory remembers, which may lag behind what we know.
  current_ = welcome.current;
  absent_why_.clear();
  absent_until_.reset();
}

void News::on_announcement(const Announcement& announcement) {
  on_newest(announcement.number);
  absent_until_.reset();
  ++heard_;
}

bool News::on_current(const Current& pair) {
  if (!pair.comes_after(current_.epoch, current_.version)) return false;
  current_ = pair;
  absent_why_.clear();
  absent_until_.reset();
  return true;
}

void News::on_answered(const Pong& pong, Mode mode, const Position& position, Time now) {
  const Time sent{Duration(pong.ping_ns)};
  if (sent > now || position.serving() == 0) return;
  const bool newest = mode == Mode::every ? pong.newest == position.serving() : position.serves(pong.current);
  if (newest) confirmed_at_ = std::max(confirmed_at_.value_or(sent), sent);
  if (pong.current.epoch <= position.serving_epoch()) standing_from_ = std::max(standing_from_.value_or(sent), sent);
}

void News::set_hopeless(VersionNumber up_to, const Current& pair) {
  hopeless_up_to_ = std::max(hopeless_up_to_, up_to);
  hopeless_ = pair;
}

void News::set_absent(std::string why, Time until) {
  absent_why_ = std::move(why);
  absent_until_ = until;
}

}  // namespace freshet::protocol
