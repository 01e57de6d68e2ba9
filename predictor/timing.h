// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The clock on which schedules are compared: one trainer, one server, constant times. Times are whole nanoseconds, so
/// two programs with the same rules agree on every request.
///
/// A row is one training step. At time 0, row N + 1 begins, and the server has the version of row N, the warm-up's last
/// row. A step takes A. A publish after row i stops the trainer for B, from that step's end on. The k-th publish is
/// served from (i - N) A + k B + C on. Deliveries run side by side, and do not slow the trainer. Request j = 1…M comes
/// at j D, also after the training. The version that is served at this time answers the request. This may be a version
/// that is served exactly from this time on.

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "core/base/result.h"

namespace freshet {

/// The four times, in nanoseconds. Viper calls them t_train, t_p, t_c and t_infer.
struct Timing {
  std::int64_t step_ns = 0;      ///< A, above 0.
  std::int64_t stall_ns = 0;     ///< B, from 0.
  std::int64_t delivery_ns = 0;  ///< C, from 0.
  std::int64_t infer_ns = 0;     ///< D, above 0: the time from one request to the next.

  bool operator==(const Timing&) const = default;
};

/// The run that a schedule is made for. Rows count from 1.
struct Horizon {
  std::int64_t warmup = 0;    ///< N: the rows before time 0; row N's version is the first one served. 1 ≤ N < L.
  std::int64_t rows = 0;      ///< L: the last row of the training.
  std::int64_t requests = 0;  ///< M, from 1.

  bool operator==(const Horizon&) const = default;
};

/// Decimal milliseconds ("12.5", "3e-4") as the nearest whole nanosecond, exactly; halves go to the even one.
/// invalid_argument for a text that is not a finite decimal number, and for a time beyond 31 years.
Result<std::int64_t> nanoseconds_of_ms(std::string_view text);

/// Milliseconds for people and JSON: the double nearest to ns / 10^6.
double ms_of_nanoseconds(std::int64_t ns);

/// Immutable; any thread.
class ReplayClock {
 public:
  static constexpr std::int64_t kRowsMax = 10'000'000;
  static constexpr std::int64_t kRequestsMax = std::int64_t{1} << 53;  ///< A count is exact as a double.

  /// invalid_argument: a value is out of range, or the last possible event lies more than 73 years after time 0. The
  /// message names the value.
  static Result<ReplayClock> make(const Timing& timing, const Horizon& horizon);

  const Timing& timing() const { return timing_; }
  const Horizon& horizon() const { return horizon_; }

  /// From when the k-th publish, after row `row`, is served. REQUIRES: warmup ≤ row ≤ rows, 1 ≤ k ≤ row - warmup.
  std::int64_t served_at(std::int64_t row, std::int64_t k) const {
    return (row - horizon_.warmup) * timing_.step_ns + k * timing_.stall_ns + timing_.delivery_ns;
  }

  /// The number of requests before `time` (from 0): a version served from then on does not answer them.
  std::int64_t requests_before(std::int64_t time) const {
    return time <= 0 ? 0 : std::min(horizon_.requests, (time - 1) / timing_.infer_ns);
  }

  /// The time of the last request.
  std::int64_t end() const { return horizon_.requests * timing_.infer_ns; }

 private:
  ReplayClock(const Timing& timing, const Horizon& horizon) : timing_(timing), horizon_(horizon) {}

  Timing timing_;
  Horizon horizon_;
};

}  // namespace freshet
