// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Which rank keeps a copy of which: level `group` with partners.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/result.h"

namespace freshet::levels {

inline constexpr std::uint32_t kGroupRanksMax = 8;

/// Ranks in groups of up to kGroupRanksMax, no two of a group on one host, of sizes as even as can be; each in order.
/// invalid_argument where a rank would be alone: then nothing survives its host.
Result<std::vector<std::vector<std::uint32_t>>> make_groups(std::span<const std::string> hosts);

/// Where a rank stands in the ring of its group.
struct RingPlace {
  std::uint32_t keeps_copy_of = 0;
  std::uint32_t copy_is_at = 0;
};
/// REQUIRES: the rank is in one of them.
RingPlace place_in_ring(std::span<const std::vector<std::uint32_t>> groups, std::uint32_t rank);

}  // namespace freshet::levels
