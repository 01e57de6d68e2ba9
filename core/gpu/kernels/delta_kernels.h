// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Arguments of the kernels of element deltas (core/FORMAT.md, "Element deltas"). A device writes and reads the blocks
/// of a payload, each of one chunk of the tensor, with planes of form 0; head and seal are the host's.

#include <cstdint>

#if defined(__CUDACC__)
#define FRESHET_EVERYWHERE __host__ __device__
#else
#define FRESHET_EVERYWHERE
#endif

namespace freshet::gpu {

/// Of a chunk, and so of a block that a device writes or reads.
inline constexpr std::uint32_t kChunkElementsMax = 8192;
inline constexpr std::uint32_t kChunkBytesMax = 16384;
/// Elements of a tensor's chunks, but for the last one. `width`: bytes of an element, 1, 2, 4 or 8.
FRESHET_EVERYWHERE constexpr std::uint32_t chunk_elements(std::uint32_t width) {
  return kChunkBytesMax / width < kChunkElementsMax ? kChunkBytesMax / width : kChunkElementsMax;
}
/// A delta kernel's block has a power of two of warps, and no more threads.
inline constexpr std::uint32_t kDeltaThreadsMax = 256;

/// The elements of a tensor, and the key of its delta's sum.
struct DeltaElements {
  std::uint64_t count;
  std::uint32_t width;       ///< Bytes: 1, 2, 4, 8.
  std::uint32_t is_ordered;  ///< 1: floats, whose differences are those of ranks.
  std::uint64_t key_low;
  std::uint64_t key_high;
};

struct PackTensor {
  const std::uint8_t* base;
  const std::uint8_t* target;
  /// Gets the target's bytes too, in the same pass; null: nothing is copied. `base` itself: what changed is written
  /// there, once it was packed.
  std::uint8_t* fresh;
  DeltaElements elements;
  std::uint8_t* blocks;  ///< Gets the payload's blocks; null: nothing is packed.
  std::uint64_t blocks_bytes_max;
  std::uint64_t* sums;       ///< Gets what kDigestSums writes of the target's parts (DigestPlan::first_tile); or null.
  std::uint64_t first_tile;  ///< Chunks of the tensors before: number_tiles().
};

/// The outcome for a tensor. REQUIRES: zeros before the launch.
struct PackResult {
  /// Of all blocks; more than blocks_bytes_max: what lies in `blocks` is not whole, and the sums are not. 0: no blocks.
  std::uint64_t bytes;
  std::uint64_t changed;
  std::uint64_t sum_low;
  std::uint64_t sum_high;
};

/// Where a block of a payload lies, and which elements are its own: the table that travels beside a device's payload.
struct BlockPlace {
  std::uint64_t offset;         ///< Bytes from the first block.
  std::uint64_t first_element;  ///< Of the tensor.
};

/// Kernel::kPack: compares, copies and packs in one pass. The order of blocks is the format's, so a block of threads
/// finds its offset from the sizes of those before (Merrill and Garland, "Single-pass parallel prefix scan with
/// decoupled look-back", 2016).
struct PackArguments {
  const PackTensor* tensors;
  std::uint64_t tensor_count;
  std::uint64_t tiles;
  PackResult* results;  ///< For each tensor.
  BlockPlace* places;   ///< For each tile of a tensor that is packed.
  std::uint64_t*
      states;  ///< For each tile, and one more, the counter of tiles begun. REQUIRES: zeros before the launch.
};

struct ApplyTensor {
  std::uint8_t* memory;  ///< Has the base, afterwards the target.
  DeltaElements elements;
  const std::uint8_t* blocks;
  std::uint64_t blocks_bytes;
  std::uint64_t first_tile;  ///< Blocks of the payloads before, rows of `places`: number_tiles().
};

/// Why a tensor's delta was not applied, or not as a whole.
enum class ApplyError : std::uint32_t {
  kNone = 0,
  kForm = 1,    ///< A plane that a device does not unpack, or a block that is too large for it: the host applies it.
  kTable = 2,   ///< The table of places does not fit the payload or the tensor.
  kHead = 3,    ///< A block's numbers do not fit each other.
  kPlaces = 4,  ///< The gaps do not lead to as many elements inside of the block.
};

/// REQUIRES: zeros before the launch. The delta is applied and proved when `error` is 0, and `changed` and the sums are
/// the head's; otherwise the memory's content is undefined.
struct ApplyResult {
  std::uint64_t changed;
  std::uint64_t sum_low;
  std::uint64_t sum_high;
  std::uint32_t error;  ///< An ApplyError: the largest of all blocks.
  std::uint32_t zero;
};

/// Kernel::kApply. A block's elements are written only when all of its places are known to be its own; so whatever a
/// payload or a table says, nothing outside of the tensor is written, and nothing outside of the payload is read.
struct ApplyArguments {
  const ApplyTensor* tensors;
  std::uint64_t tensor_count;
  std::uint64_t tiles;
  const BlockPlace* places;
  ApplyResult* results;
};

}  // namespace freshet::gpu
