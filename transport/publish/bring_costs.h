// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What it costs to bring a changed tensor from a GPU's memory to host memory: all of its bytes over the bus, or a
/// delta over the bus that the processor applies. Each way's cost is measured as it is used, and the cheaper one is
/// taken.

#include <cstdint>

#include "core/base/clock.h"

namespace freshet {

/// One thread at a time.
class BringCosts {
 public:
  /// For tests, `always` and `never` leave nothing to the clock.
  enum class Deltas : std::uint8_t { measured, always, never };

  explicit BringCosts(Deltas deltas = Deltas::measured) : deltas_(deltas) {}

  bool is_delta_cheaper(std::uint64_t tensor_bytes, std::uint64_t delta_bytes) const {
    if (deltas_ != Deltas::measured) return deltas_ == Deltas::always;
    return static_cast<double>(delta_bytes) * of_delta_byte_ < static_cast<double>(tensor_bytes) * of_whole_byte_;
  }

  /// So much was brought in one go. Few bytes tell nothing: their time is that of the calls.
  void note_whole(std::uint64_t bytes, Duration time) {
    if (bytes >= kWholeBytesMin) note(of_whole_byte_, of_delta_byte_, bytes, time);
  }
  void note_delta(std::uint64_t bytes, Duration time) {
    if (bytes >= kDeltaBytesMin) note(of_delta_byte_, of_whole_byte_, bytes, time);
  }

 private:
  // At the first costs below these take 0.17 ms and 0.26 ms, longer than the calls.
  static constexpr std::uint64_t kWholeBytesMin = std::uint64_t{4} << 20;
  static constexpr std::uint64_t kDeltaBytesMin = std::uint64_t{256} << 10;

  static constexpr double kNewest = 0.25;  ///< Weight of a measurement among those before.
  /// The way that is not taken seems a little cheaper each time, until it is tried again.
  static constexpr double kForgotten = 1 - 1.0 / 64;

  static void note(double& cost, double& other, std::uint64_t bytes, Duration time) {
    const double now = std::chrono::duration<double, std::nano>(time).count() / static_cast<double>(bytes);
    cost += kNewest * (now - cost);
    other *= kForgotten;
  }

  const Deltas deltas_;
  // Nanoseconds a byte; at first, those of PCIe 4 and of one processor.
  double of_whole_byte_ = 0.04;
  double of_delta_byte_ = 1;
};

}  // namespace freshet
