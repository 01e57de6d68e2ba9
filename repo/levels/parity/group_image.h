// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Where the pieces of a group's shares stand in the ranks' images (FORMAT.md), of which the stripes are cut.
///
/// Bytes that change together have to stand together: if one byte under a parity block changes, the block is written
/// again. So the pieces of one tensor stand at one place in the images of all ranks, and each region of the images is
/// cut into blocks by itself. If a tensor changes, the parity of its region is written again, and no other.
///
///   rank 0's image   | w   | v         | small tensors | what few ranks have |
///   rank 1's image   | w   | v         | …             | …                   |
///   a row of parity  | w/k | v/k       | 1/k …         | 1/k …               |

#include <cstdint>
#include <span>
#include <vector>

#include "core/layout/layout.h"
#include "repo/levels/shards/shard.h"

namespace freshet::levels {

/// The pieces of a tensor are a region, if the longest one is as long as this for each of a stripe's blocks. Fewer
/// bytes would not be worth it: who computes parity reads whole chunks.
inline constexpr std::uint64_t kRegionPartBytesMin = 2 * kChunkBytes;
/// Smaller ones stand together, and are cut into regions of this for each of a stripe's blocks.
inline constexpr std::uint64_t kSmallPartBytes = kChunkBytes;
/// So is what few ranks have. Its pieces may be long.
inline constexpr std::uint64_t kOddPartBytes = 8 * kChunkBytes;

/// Bytes at one place of each rank's image: k blocks of `part_bytes`, and a part of that length of each row of parity.
struct Region {
  std::uint64_t begin = 0;  ///< In the image.
  std::uint64_t part_bytes = 0;
  std::uint64_t row_begin = 0;    ///< Of its part in a row.
  std::uint64_t first_block = 0;  ///< Of its part, among the blocks of a row (ParityOf::blocks()).
};

/// Immutable.
class GroupImage {
 public:
  GroupImage() = default;
  /// `pieces`: of each position. `data`: k.
  GroupImage(std::span<const LaidTensor> tensors, std::span<const std::vector<StoredPiece>> pieces, std::uint32_t data);

  /// Where the pieces of that position stand in its image.
  const std::vector<std::uint64_t>& offsets(std::uint32_t position) const { return offsets_[position]; }
  const std::vector<Region>& regions() const { return regions_; }
  /// Bytes of the parts of a row (ParityOf::parts).
  std::vector<std::uint64_t> parts() const;
  std::uint64_t row_bytes() const { return row_bytes_; }

  /// A byte of an image.
  struct Place {
    const Region* region = nullptr;
    std::uint32_t block = 0;   ///< Of the region's k.
    std::uint64_t offset = 0;  ///< In that block, and in the region's part of a row.
  };
  /// REQUIRES: the byte is one of a piece.
  Place place_of(std::uint64_t image_offset) const;

 private:
  void add_region(std::uint64_t image_bytes, std::uint32_t data);

  std::vector<Region> regions_;                      ///< Ascending.
  std::vector<std::vector<std::uint64_t>> offsets_;  ///< By position, one for each piece.
  std::uint64_t image_bytes_ = 0;
  std::uint64_t row_bytes_ = 0;
  std::uint64_t row_blocks_ = 0;
};

}  // namespace freshet::levels
