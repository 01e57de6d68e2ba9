// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Deadlines from durations that callers give, "for ever" among them.

#include <algorithm>

#include "core/base/clock.h"

namespace freshet {

/// `at_most` from now, in the machine's time; a day at most, so that nothing overflows and every wait ends.
inline Time deadline_in(Duration at_most) {
  constexpr Duration kLongest = std::chrono::hours(24);
  return system_clock().now() + std::clamp(at_most, Duration::zero(), kLongest);
}

}  // namespace freshet
