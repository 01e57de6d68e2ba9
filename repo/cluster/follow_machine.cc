#include "repo/cluster/follow_machine.h"

#include <algorithm>
#include <utility>

namespace freshet::cluster {

std::optional<FollowMachine::Ask> FollowMachine::ask(Time now) {
  if (asked_ || (now < due_ && !hurry_)) return std::nullopt;
  // Who hurries it from now on may need more than this answer will have.
  hurry_ = false;
  asked_ = Ask{.number = ++numbers_, .after = followed_.position};
  asked_at_ = now;
  return asked_;
}

void FollowMachine::on_page(std::uint64_t number, const FeedPage& page, Time now) {
  if (!asked_ || asked_->number != number) return;
  const bool goes_on = page.from == asked_->after;
  if (page.from.life == 0 || (!goes_on && page.from.change != 0) || page.to < page.from.change || page.end < page.to ||
      (page.to == page.from.change && page.end > page.to)) {
    return on_failure(number, Error(Code::corrupt, "it tells changes that follow nothing"), now);
  }
  asked_.reset();
  if (!goes_on) {
    followed_ = {};
    sink_.drop();
  }
  for (const FeedChange& change : page.changes) sink_.apply(change);
  followed_.position = {.life = page.from.life, .change = page.to};
  followed_.heard = asked_at_;
  followed_.failed.reset();
  const bool at_end = page.to == page.end;
  if (at_end) {
    followed_.complete = true;
    followed_.commit = page.commit;
  }
  pause_ =
      page.changes.empty() ? std::clamp(2 * pause_, times_.idle, std::max(times_.idle, times_.idle_max)) : times_.idle;
  due_ = at_end ? now + pause_ : now;
}

void FollowMachine::on_failure(std::uint64_t number, const Error& why, Time now) {
  if (!asked_ || asked_->number != number) return;
  asked_.reset();
  followed_.failed = why;
  due_ = now + times_.retry;
}

}  // namespace freshet::cluster
