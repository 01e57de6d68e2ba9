// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What happens to packets on a long line, as arithmetic: when each one comes out at the other end, and which are lost.
/// No I/O, no clock; delay_link.h moves the packets.

#include <cstdint>
#include <optional>
#include <random>

#include "core/base/clock.h"

namespace freshet::lab {

/// One direction of a line.
struct LineShape {
  Duration delay{};      ///< From when the last bit has left until it arrives.
  Duration jitter{};     ///< Up to that much more, drawn for each packet; keeps their order.
  double reordered = 0;  ///< The share of packets that come late by up to `reorder_delay`, behind others.
  Duration reorder_delay{};
  double lost = 0;                    ///< The share that never arrives.
  std::uint64_t bits_per_second = 0;  ///< 0: no limit.
  /// Bytes that may wait for the line at its beginning; what comes when it is full is lost, as in a router.
  std::uint64_t queue_bytes_max = std::uint64_t{8} << 20;
  std::uint64_t seed = 1;
};

/// One thread at a time.
class DelayLine {
 public:
  explicit DelayLine(const LineShape& shape) : shape_(shape), random_(shape.seed) {}

  /// A packet came at `now`, not before the one before it. When it arrives at the other end; nothing when it is lost.
  std::optional<Time> arrival(Time now, std::uint64_t bytes);

  struct Counts {
    std::uint64_t packets = 0;
    std::uint64_t bytes = 0;
    std::uint64_t lost = 0;      ///< By chance.
    std::uint64_t overflow = 0;  ///< Because too much waited.
    std::uint64_t reordered = 0;
  };
  const Counts& counts() const { return counts_; }

 private:
  const LineShape shape_;
  std::mt19937_64 random_;
  std::uniform_real_distribution<double> share_{0.0, 1.0};
  Time free_at_{};       ///< When the line has sent all that waited.
  Time last_arrival_{};  ///< Of those that keep the order.
  Counts counts_;
};

}  // namespace freshet::lab
