// SPDX-License-Identifier: Apache-2.0
#include "transport/redis/lease.h"

#include <algorithm>

#include "core/base/format.h"
#include "transport/protocol/messages.h"

namespace freshet::redis {

std::uint64_t Lease::change() {
  due_ = Time{};
  return ++revision_;
}

std::uint64_t Lease::give(VersionNumber number) {
  // Filled up while half of it is left, so that nobody waits for it.
  const VersionNumber room = protocol::kNumberMax - std::min(protocol::kNumberMax, number);
  if (reserved_ < number || reserved_ - number < options_.block / 2) {
    const VersionNumber ahead = number + std::min(options_.block, room);
    if (ahead > wanted_.number) {
      wanted_.number = ahead;
      change();
    }
  }
  if (number > reserved_) return revision_;
  given_ = std::max(given_, number);
  return 0;
}

std::uint64_t Lease::begin(std::uint64_t incarnation) {
  wanted_.incarnation = std::max(wanted_.incarnation, incarnation);
  wanted_.number = std::max(wanted_.number, given_ + options_.block);
  return change();
}

std::uint64_t Lease::advertise(std::string entry) {
  wanted_.entry = std::move(entry);
  return change();
}

void Lease::saw(const CurrentVersion& current) {
  if (current.comes_after(wanted_.current.epoch, wanted_.current.version)) wanted_.current = current;
}

Time Lease::next_keep() const { return on_its_way_ || lost_ ? Time::max() : due_; }

Keep Lease::begin_keep(Time now) {
  on_its_way_ = true;
  sent_revision_ = revision_;
  sent_number_ = wanted_.number;
  sent_at_ = now;
  wanted_.stale = now - sure_at_ > options_.lease;
  // Four chances before the lease lapses.
  due_ = now + options_.lease / 4;
  return wanted_;
}

bool Lease::on_kept(const Kept& kept, Time now) {
  on_its_way_ = false;
  if (kept.young > Duration(0)) {
    due_ = now + kept.young;
    return false;
  }
  if (kept.lost || !kept.record) {
    lost_ = kept.lost.value_or("somebody");
    return false;
  }
  // While the name is ours nobody else moves its numbers: whose block would it be?
  if (kept.record->number > sent_number_) {
    lost_ = format("another publisher, which moved its number to {}", kept.record->number);
    return false;
  }
  sure_at_ = std::max(sure_at_, sent_at_);
  reserved_ = std::max(reserved_, sent_number_);
  kept_revision_ = std::max(kept_revision_, sent_revision_);
  saw(kept.record->current);
  if (revision_ > sent_revision_) due_ = now;
  return kept.again;
}

void Lease::on_failed(Time now) {
  on_its_way_ = false;
  due_ = now + options_.retry_after;
}

void Lease::on_reconnected(Time now) {
  if (!on_its_way_) due_ = now;
}

}  // namespace freshet::redis
