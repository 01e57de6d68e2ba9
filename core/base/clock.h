// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The interface to time; tests can replace it. A state machine gets the time as an argument. The code around the state
/// machines asks a Clock. Tests advance a ManualClock.

#include <atomic>
#include <chrono>
#include <cstdint>

namespace freshet {

using Duration = std::chrono::nanoseconds;

/// A point on the host's monotonic clock; comparable between processes of one host, not between hosts.
using Time = std::chrono::time_point<std::chrono::steady_clock, std::chrono::nanoseconds>;

/// Any thread.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual Time now() const = 0;
  /// Nanoseconds since 1970, UTC; for people and records, never for deciding an order.
  virtual std::int64_t unix_ns() const = 0;
};

/// The machine's clocks. Immutable; one instance serves everybody.
const Clock& system_clock();

/// A clock that stands still until advance() is called. Any thread.
class ManualClock final : public Clock {
 public:
  Time now() const override { return Time(Duration(ns_.load())); }
  std::int64_t unix_ns() const override { return ns_.load(); }
  void advance(Duration by) { ns_ += by.count(); }

 private:
  std::atomic<std::int64_t> ns_{0};
};

}  // namespace freshet
