// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The lifetime of a pin that is never explicitly removed.

#include <chrono>
#include <compare>
#include <cstdint>
#include <optional>

#include "core/base/clock.h"

namespace freshet {

/// A number that a client draws at random. With it, the client renews its pins.
struct PinLease {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  auto operator<=>(const PinLease&) const = default;
};

/// A new lease that nobody else has.
PinLease new_pin_lease();

/// A lease ends this time after its last renewal. A living client renews its lease each quarter of this time, so a few
/// lost messages do no harm. A client that is stopped or cut off for longer loses its pins.
inline constexpr Duration kPinLease = std::chrono::minutes(2);

struct PinTerms {
  /// True: the pin stays until it is removed, even if its client dies. For people, and for programs that come back
  /// under the same name. False: the pin ends kPinLease after the last sign of life of its client, or after the
  /// repository was opened again.
  bool stays = false;
  /// The lease of the pin, for a caller that pins for another client. Not set: the repository object's own lease, which
  /// is renewed as long as the object lives.
  std::optional<PinLease> lease;
};

}  // namespace freshet
