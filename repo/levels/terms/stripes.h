// SPDX-License-Identifier: Apache-2.0
#pragma once

/// How the shares of a group's ranks are cut into stripes, so that each rank keeps as much parity as any other.
///
/// A group of g ranks that survives m lost ones has g stripes of k = g - m data blocks and m parity blocks. Positions
/// are those in the group, and count around it:
///
///   stripe s: parity row p is kept by position s + p, data block i is of position s + m + i.
///
/// So each position has k data blocks, one in each of k stripes: those of its image (group_image.h), whose regions have
/// k blocks each; and m parity rows, one of each of the other stripes.

#include <cstdint>

namespace freshet::levels {

struct Stripes {
  std::uint32_t ranks = 2;   ///< g
  std::uint32_t losses = 1;  ///< m, less than g.

  std::uint32_t data() const { return ranks - losses; }  ///< k
  std::uint32_t parity_at(std::uint32_t stripe, std::uint32_t row) const { return (stripe + row) % ranks; }
  std::uint32_t data_at(std::uint32_t stripe, std::uint32_t block) const { return (stripe + losses + block) % ranks; }
  std::uint32_t stripe_of_row(std::uint32_t position, std::uint32_t row) const {
    return (position + ranks - row) % ranks;
  }
  std::uint32_t stripe_of_block(std::uint32_t position, std::uint32_t block) const {
    return (position + 2 * ranks - losses - block) % ranks;
  }
};

}  // namespace freshet::levels
