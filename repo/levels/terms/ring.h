// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The groups of level `group`: the ranks that keep copies or parity of each other's shards.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "repo/levels/terms/terms.h"

namespace freshet::levels {

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
