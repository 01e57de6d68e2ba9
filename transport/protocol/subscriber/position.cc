// SPDX-License-Identifier: Apache-2.0
#include "transport/protocol/subscriber/position.h"

#include <algorithm>
#include <utility>

namespace freshet::protocol {

Position::Position(Mode mode, VersionNumber after, std::uint64_t after_incarnation) : mode_(mode) {
  if (mode_ == Mode::every) {
    number_ = after;
    incarnation_ = after_incarnation;
  }
  highest_seen_ = number_;
}

/// The directory forgot what it gave out before (it does with its host), and this incarnation gives numbers again: what
/// was taken under them is not what is there now. Or what we were told to begin after was numbered by somebody else:
/// the publisher has not come so far.
bool Position::begins_anew_with(const Welcome& welcome) {
  if (!numbers_since_) numbers_since_ = 0;
  if (mode_ != Mode::every || incarnation_ == 0 || welcome.first_number == 0) return false;
  if (number_ < welcome.first_number) return false;
  if (incarnation_ == welcome.incarnation && (serving_ != 0 || number_ <= welcome.newest)) return false;
  numbers_since_ = welcome.incarnation;
  number_ = welcome.first_number - 1;
  incarnation_ = 0;
  owed_all_ = true;
  return true;
}

bool Position::on_served(VersionNumber number, std::uint64_t epoch, std::uint64_t gap_before,
                         std::uint64_t incarnation) {
  number_ = mode_ == Mode::every ? std::max(number_, number) : number;
  highest_seen_ = std::max(highest_seen_, number);
  serving_ = number;
  epoch_ = epoch;
  gaps_ += gap_before;
  given_up_ = 0;
  if (mode_ == Mode::every) delivered_.insert(number);
  incarnation_ = incarnation;
  return std::exchange(serving_epoch_, epoch) != epoch;
}

void Position::on_swapped(VersionNumber number) {
  number_ = serving_ = number;
  highest_seen_ = std::max(highest_seen_, number);
}

void Position::on_activated(std::uint64_t epoch) {
  epoch_ = serving_epoch_ = epoch;
  number_ = serving_;
}

void Position::on_refuted() {
  serving_ = number_ = 0;
  epoch_ = serving_epoch_ = 0;
}

void Position::pass_over(VersionNumber number, std::uint64_t epoch, std::uint64_t gap_before) {
  if (mode_ == Mode::latest) {
    number_ = number;
    epoch_ = epoch;
    return;
  }
  number_ = std::max(number_, number);
  gaps_ += gap_before + 1;
  given_up_ += gap_before + 1;
}

bool Position::see(VersionNumber number) {
  if (number <= highest_seen_) return false;
  highest_seen_ = number;
  return true;
}

}  // namespace freshet::protocol
