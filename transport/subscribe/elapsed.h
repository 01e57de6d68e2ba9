// SPDX-License-Identifier: Apache-2.0
#pragma once

/// How long ago an instant was that somebody else named.

#include <algorithm>
#include <cstdint>

#include "core/base/clock.h"

namespace freshet::detail {

/// From an instant of this host's monotonic clock that somebody else named, never negative.
inline Duration elapsed_since(std::int64_t ns, Time at) {
  // Unsigned: what somebody else names may be anything.
  const auto difference = static_cast<std::int64_t>(static_cast<std::uint64_t>(at.time_since_epoch().count()) -
                                                    static_cast<std::uint64_t>(ns));
  return Duration(std::max<std::int64_t>(0, difference));
}

}  // namespace freshet::detail
