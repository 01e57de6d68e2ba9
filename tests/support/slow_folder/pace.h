// SPDX-License-Identifier: Apache-2.0
#pragma once

/// How long an operation takes: a latency of its own, side by side with others, and its turn on one line that all
/// share.

#include <time.h>

#include <algorithm>
#include <cstdint>

#include "core/base/mutex.h"

namespace freshet::slow {

/// Any thread.
class Pace {
 public:
  /// `bytes_per_second` 0: the line has no end.
  void set(std::int64_t latency_ns, double bytes_per_second) {
    const MutexLock lock(mutex_);
    latency_ns_ = latency_ns;
    bytes_per_second_ = bytes_per_second;
    free_at_ns_ = 0;
  }

  /// Returns when an operation that moved `bytes` and began now is over.
  void spend(std::uint64_t bytes) {
    const std::int64_t over = over_at(bytes);
    if (over == 0) return;
    const timespec at = {.tv_sec = over / kSecond, .tv_nsec = over % kSecond};
    while (::clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, nullptr) == EINTR) {
    }
  }

 private:
  static constexpr std::int64_t kSecond = 1'000'000'000;

  static std::int64_t now_ns() {
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * kSecond + now.tv_nsec;
  }

  std::int64_t over_at(std::uint64_t bytes) {
    const MutexLock lock(mutex_);
    if (latency_ns_ == 0 && bytes_per_second_ == 0) return 0;
    const std::int64_t now = now_ns();
    if (bytes_per_second_ == 0 || bytes == 0) return now + latency_ns_;
    free_at_ns_ =
        std::max(now, free_at_ns_) + static_cast<std::int64_t>(static_cast<double>(bytes) * 1e9 / bytes_per_second_);
    return free_at_ns_ + latency_ns_;
  }

  Mutex mutex_;
  std::int64_t latency_ns_ FRESHET_GUARDED_BY(mutex_) = 0;
  double bytes_per_second_ FRESHET_GUARDED_BY(mutex_) = 0;
  std::int64_t free_at_ns_ FRESHET_GUARDED_BY(mutex_) = 0;
};

}  // namespace freshet::slow
