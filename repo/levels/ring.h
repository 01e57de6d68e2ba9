// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The groups of level `group`: the ranks that keep copies or parity of each other's shards.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"

namespace freshet::levels {

inline constexpr std::uint32_t kGroupRanksMax = 8;

struct GroupScheme {
  enum class Kind : std::uint8_t { none, partner, parity };
  Kind kind = Kind::none;
  std::uint32_t losses = 1;  ///< The number of hosts that each group may lose: 1 with partners.
  bool operator==(const GroupScheme&) const = default;
};
/// "none", "partner", "xor", or "rs:F" for any F losses (1 to 7).
Result<GroupScheme> parse_group_scheme(std::string_view text);
std::string to_string(const GroupScheme& scheme);

/// Makes groups of up to kGroupRanksMax ranks, with even sizes, and no two ranks of a group on one host; each group in
/// order. invalid_argument if a group would not have more ranks than it may lose.
Result<std::vector<std::vector<std::uint32_t>>> make_groups(std::span<const std::string> hosts,
                                                            std::uint32_t losses = 1);
/// The group of a rank. REQUIRES: there is one.
const std::vector<std::uint32_t>& group_of(std::span<const std::vector<std::uint32_t>> groups, std::uint32_t rank);

/// A rank's place in the ring of its group.
struct RingPlace {
  std::uint32_t keeps_copy_of = 0;
  std::uint32_t copy_is_at = 0;
};
/// REQUIRES: the rank is in one of the groups.
RingPlace place_in_ring(std::span<const std::vector<std::uint32_t>> groups, std::uint32_t rank);

}  // namespace freshet::levels
