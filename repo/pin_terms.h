// SPDX-License-Identifier: Apache-2.0
#pragma once

/// How long a pin lasts that nobody takes away.

#include <chrono>
#include <compare>
#include <cstdint>
#include <optional>

#include "core/clock.h"

namespace freshet {

/// Drawn at random by a client: who knows it can renew the pins that were taken with it.
struct PinLease {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  auto operator<=>(const PinLease&) const = default;
};

/// One that nobody else has.
PinLease new_pin_lease();

/// How long after it was last renewed a lease ends. A client that lives renews its lease each quarter of that, so a few
/// losses end nothing; whoever is stopped, or cut off, for longer loses its pins.
inline constexpr Duration kPinLease = std::chrono::minutes(2);

struct PinTerms {
  /// It stays until it is taken away, whoever dies: for people, and for who comes back under the same name. Otherwise
  /// it ends kPinLease after the client that took it was last heard of, or after the repository was opened again.
  bool stays = false;
  /// Whose lease it is, where somebody pins for another; without one it is the repository object's own, which is
  /// renewed as long as the object lives.
  std::optional<PinLease> lease;
};

}  // namespace freshet
