// SPDX-License-Identifier: Apache-2.0
#include "tests/support/net/lab/delay_line.h"

#include <algorithm>

namespace freshet::lab {

std::optional<Time> DelayLine::arrival(Time now, std::uint64_t bytes) {
  ++counts_.packets;
  counts_.bytes += bytes;
  if (shape_.lost > 0 && share_(random_) < shape_.lost) {
    ++counts_.lost;
    return std::nullopt;
  }
  Time sent = now;
  if (shape_.bits_per_second > 0) {
    const double ns_per_byte = 8e9 / static_cast<double>(shape_.bits_per_second);
    const Time start = std::max(now, free_at_);
    const double waiting = static_cast<double>((start - now).count()) / ns_per_byte;
    if (waiting + static_cast<double>(bytes) > static_cast<double>(shape_.queue_bytes_max)) {
      ++counts_.overflow;
      return std::nullopt;
    }
    free_at_ = start + Duration(static_cast<std::int64_t>(static_cast<double>(bytes) * ns_per_byte));
    sent = free_at_;
  }
  const auto drawn = [this](Duration at_most) {
    return Duration(static_cast<std::int64_t>(share_(random_) * static_cast<double>(at_most.count())));
  };
  const Time arrival = std::max(sent + shape_.delay + drawn(shape_.jitter), last_arrival_);
  if (shape_.reordered > 0 && share_(random_) < shape_.reordered) {
    ++counts_.reordered;
    return arrival + drawn(shape_.reorder_delay);
  }
  last_arrival_ = arrival;
  return arrival;
}

}  // namespace freshet::lab
