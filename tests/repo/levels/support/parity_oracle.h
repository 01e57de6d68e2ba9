// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Whether a lost share can be computed, by the definition in FORMAT.md, block by block.

#include <cstdint>
#include <vector>

namespace freshet::sim {

/// All ranks are one group, made for so many losses. Rank (s + p) mod n keeps row p of stripe s; what follows the rows
/// around the group is its data. A stripe gives back what it lost when it lost no more blocks than it has rows; and
/// one of the next `losses` ranks has the head.
inline bool parity_gives(std::uint32_t lost, std::uint32_t losses, const std::vector<bool>& has_share,
                         const std::vector<bool>& has_parity) {
  const auto ranks = static_cast<std::uint32_t>(has_share.size());
  if (losses == 0) return false;
  bool has_head = false;
  for (std::uint32_t ahead = 1; ahead <= losses; ++ahead) has_head = has_head || has_parity[(lost + ahead) % ranks];
  if (!has_head) return false;
  for (std::uint32_t stripe = 0; stripe < ranks; ++stripe) {
    std::uint32_t gone = 0;
    bool has_data = false;
    for (std::uint32_t i = 0; i < ranks; ++i) {
      const std::uint32_t rank = (stripe + i) % ranks;
      const bool is_data = i >= losses;
      has_data = has_data || (is_data && rank == lost);
      gone += (is_data ? has_share[rank] : has_parity[rank]) ? 0 : 1;
    }
    if (has_data && gone > losses) return false;
  }
  return true;
}

}  // namespace freshet::sim
