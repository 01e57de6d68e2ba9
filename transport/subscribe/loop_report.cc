// SPDX-License-Identifier: Apache-2.0
#include "transport/subscribe/loop_report.h"

#include "core/base/interruption.h"

namespace freshet::detail {
namespace {

bool same(const std::optional<Error>& one, const std::optional<Error>& other) {
  if (!one || !other) return one.has_value() == other.has_value();
  return one->code() == other->code() && one->message() == other->message();
}

}  // namespace

bool LoopReport::News::operator==(const News& other) const {
  return serving == other.serving && serving_epoch == other.serving_epoch && current == other.current &&
         confirmed_at == other.confirmed_at && staging == other.staging && staged == other.staged &&
         same(staging_failed, other.staging_failed);
}

LoopReport::News LoopReport::news() const {
  MutexLock lock(mutex_);
  return news_;
}

LoopReport::News LoopReport::wait_for_other(const News& known, Time deadline, const std::stop_token& stop) {
  const StopWakes wakes(stop, mutex_, changed_);
  MutexLock lock(mutex_);
  while (news_ == known && !stop.stop_requested()) {
    if (!changed_.wait_until(mutex_, deadline)) break;
  }
  return news_;
}

void LoopReport::set(const News& news, std::optional<Time> lapses_at) {
  if (lapses_at) lapses_at_ns_ = lapses_at->time_since_epoch().count();
  MutexLock lock(mutex_);
  if (news_ == news) return;
  news_ = news;
  changed_.notify_all();
}

}  // namespace freshet::detail
