// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Arguments of the kernels that form digests (core/FORMAT.md, "Digests"). XXH3-128 of more than 240 bytes is a chain
/// over blocks of 1 KiB: eight sums of a block, which depend on the block alone, then a scramble. So kDigestSums forms
/// the sums of all blocks at once, and kDigestChain goes along each part's sums: some 14 ns a KiB of the longest part,
/// a millisecond for 64 MiB.

#include <cstdint>

namespace freshet::gpu {

inline constexpr std::uint32_t kDigestThreadsMax = 256;  ///< Of a block of threads.
/// Of a block of XXH3 with its own secret: 16 stripes of 64 bytes.
inline constexpr std::uint64_t kDigestBlockBytes = 1024;
inline constexpr std::uint64_t kDigestSumsOfBlock = 8;
/// A tensor is cut into parts of so many bytes: freshet::kDigestPartBytes.
inline constexpr std::uint64_t kDigestPartSize = std::uint64_t{64} << 20;
/// Up to so many bytes have other formulas, and are the host's.
inline constexpr std::uint64_t kDigestHostBytesMax = 240;

/// One part of a tensor: more than kDigestHostBytesMax bytes, at most kDigestPartSize. Any address.
struct DigestPart {
  const std::uint8_t* bytes;
  std::uint64_t length;
  std::uint64_t first_tile;  ///< Sum of ceil(length / kDigestBlockBytes) of the parts before: number_tiles().
};

/// Kernel::kDigestSums.
struct DigestSumsArguments {
  const DigestPart* parts;
  std::uint64_t part_count;
  std::uint64_t tiles;
  std::uint64_t* sums;  ///< kDigestSumsOfBlock for each tile.
};

/// Kernel::kDigestChain, behind kDigestSums in the same stream. Eight threads a part.
struct DigestChainArguments {
  const DigestPart* parts;
  std::uint64_t part_count;
  const std::uint64_t* sums;
  std::uint64_t* digests;  ///< Low half, high half, for each part.
};

}  // namespace freshet::gpu
