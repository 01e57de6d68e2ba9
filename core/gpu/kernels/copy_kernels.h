// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Arguments of the kernels that move bytes. Plain pointers to memory that the device reaches, and sizes.

#include <cstdint>

namespace freshet::gpu {

/// Kernel::kFill: all bytes become `value`.
struct FillArguments {
  std::uint8_t* to;
  std::uint64_t bytes;
  std::uint8_t value;
};

inline constexpr std::uint32_t kFillThreadsMax = 1024;  ///< Of a block.
inline constexpr std::uint32_t kCopyThreadsMax = 256;
inline constexpr std::uint64_t kCopyTileBytes = std::uint64_t{64} << 10;

/// A range that is copied. Any address and any size will do; where both addresses are equal modulo 16, it is fastest.
struct CopyTensor {
  const std::uint8_t* from;
  std::uint8_t* to;
  std::uint64_t bytes;
  std::uint64_t first_tile;  ///< Sum of ceil(bytes / kCopyTileBytes) of the tensors before: number_tiles().
};

/// Kernel::kCopy. REQUIRES: no range that is written overlaps another.
struct CopyArguments {
  const CopyTensor* tensors;
  std::uint64_t tensor_count;  ///< 0 is allowed.
  std::uint64_t tiles;
};

}  // namespace freshet::gpu
