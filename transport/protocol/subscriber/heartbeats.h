// SPDX-License-Identifier: Apache-2.0
#pragma once

/// When a subscriber's next Ping is due. One thread at a time.

#include <algorithm>

#include "core/base/clock.h"

namespace freshet::protocol {

class Heartbeats {
 public:
  explicit Heartbeats(Duration each) : each_(each) {}

  /// Time::max(): not before begin() is called again.
  void begin(Time at) { next_ = at; }
  bool is_due(Time now) const { return now >= next_; }
  Time next() const { return next_; }
  void on_beat(Time now) {
    last_ = now;
    next_ = now + each_;
  }
  /// What a Ping says has changed, and somebody may wait for it: the next is due at once, or soon after the last one.
  void hurry(Time now) { next_ = std::min(next_, std::max(now, last_ + each_ / kSoonParts)); }

 private:
  static constexpr int kSoonParts = 50;

  const Duration each_;
  Time next_{};
  Time last_{};
};

}  // namespace freshet::protocol
