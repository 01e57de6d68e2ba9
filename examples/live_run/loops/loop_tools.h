// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Small things that loops need: of the roles, and of the progress line. Each belongs to one thread.

#include <algorithm>
#include <limits>
#include <thread>

#include "core/base/clock.h"

namespace freshet::live {

/// In milliseconds.
inline double ms(Duration duration) { return std::chrono::duration<double, std::milli>(duration).count(); }

/// True once every `interval`, for work that a loop does now and then.
class Every {
 public:
  explicit Every(Duration interval) : interval_(interval) {}
  bool due(Time now) {
    if (now < next_) return false;
    next_ = now + interval_;
    return true;
  }

 private:
  Duration interval_;
  Time next_{};
};

/// Keeps a loop to so many turns a second; one that fell behind does not hurry after. 0 lets it run.
class Pace {
 public:
  explicit Pace(double per_second) : interval_(per_second > 0 ? static_cast<std::int64_t>(1e9 / per_second) : 0) {}
  void wait() {
    const Time now = system_clock().now();
    next_ = std::max(next_ + interval_, now - std::chrono::milliseconds(50));
    if (next_ > now) std::this_thread::sleep_for(next_ - now);
  }

 private:
  Duration interval_;
  Time next_{};
};

/// The mean of what was added since it was last taken; NaN of nothing.
class Mean {
 public:
  void add(double value) {
    sum_ += value;
    ++count_;
  }
  double take() {
    const double mean = count_ == 0 ? std::numeric_limits<double>::quiet_NaN() : sum_ / static_cast<double>(count_);
    sum_ = 0;
    count_ = 0;
    return mean;
  }

 private:
  double sum_ = 0;
  std::uint64_t count_ = 0;
};

}  // namespace freshet::live
