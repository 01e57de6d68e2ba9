// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Which ranks keep what of each other's: the groups of level `group`.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"

namespace freshet::levels {

inline constexpr std::uint32_t kGroupRanksMax = 8;

struct GroupScheme {
  enum class Kind : std::uint8_t { none, partner, parity };
  Kind kind = Kind::none;
  std::uint32_t losses = 1;  ///< Of each group's hosts so many may be lost: 1 with partners.
  bool operator==(const GroupScheme&) const = default;
};
/// "none", "partner", "xor", or "rs:F" for any F losses (1 to 7).
Result<GroupScheme> parse_group_scheme(std::string_view text);
std::string to_string(const GroupScheme& scheme);

/// Ranks in groups of up to kGroupRanksMax, no two of a group on one host, of sizes as even as can be; each in order.
/// invalid_argument where a group would have no more ranks than may be lost.
Result<std::vector<std::vector<std::uint32_t>>> make_groups(std::span<const std::string> hosts,
                                                            std::uint32_t losses = 1);
/// The group that the rank is in. REQUIRES: there is one.
const std::vector<std::uint32_t>& group_of(std::span<const std::vector<std::uint32_t>> groups, std::uint32_t rank);

/// Where a rank stands in the ring of its group.
struct RingPlace {
  std::uint32_t keeps_copy_of = 0;
  std::uint32_t copy_is_at = 0;
};
/// REQUIRES: the rank is in one of them.
RingPlace place_in_ring(std::span<const std::vector<std::uint32_t>> groups, std::uint32_t rank);

}  // namespace freshet::levels
