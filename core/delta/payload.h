// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The frame of an element delta: head, blocks, seal (core/FORMAT.md). For the source files of core/delta, and of the
/// device's half in core/gpu.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/delta/element_delta.h"
#include "core/delta/kernels.h"

namespace freshet::delta {

/// The limits of a block. So that its working memory is small whatever a payload claims.
inline constexpr std::uint32_t kBlockElementsMax = std::uint32_t{1} << 24;
inline constexpr std::uint32_t kBlockChangesMax = std::uint32_t{1} << 16;
/// In the gap plane: "so many elements further on, and none of them has changed".
inline constexpr std::uint32_t kGapEscape = 255;
inline constexpr std::size_t kGapBytesMax = kBlockChangesMax + kBlockElementsMax / kGapEscape;

inline constexpr std::size_t kHeadBytes = 112;
inline constexpr std::size_t kBlockHeadBytes = 12;
inline constexpr std::size_t kSealBytes = 16;

struct Head {
  DeltaInfo info;
  DeltaSum sum;
};

/// REQUIRES: room for kHeadBytes.
void store_head(const Head& head, std::byte* to);
/// Appends the seal over all that is there.
void append_seal(std::vector<std::byte>& payload);

struct OpenedPayload {
  Head head;
  Bytes blocks;
};
/// Checks the seal and reads the head.
Result<OpenedPayload> open_payload(Bytes payload);

struct BlockHead {
  std::uint32_t elements = 0;
  std::uint32_t changed = 0;
  std::uint32_t gap_bytes = 0;
};
void append_block_head(const BlockHead& block, std::vector<std::byte>& out);
/// Reads a block's head from the start of `in` and moves `in` behind it. corrupt when the block is over its limits, or
/// over `elements_left`, or its numbers do not fit each other.
Result<BlockHead> take_block_head(Bytes& in, std::uint64_t elements_left);

/// The key of the sum: the digest of a head with these names, dtype and size, and zeros behind them.
DeltaSum sum_key(const DeltaSpec& spec, std::uint64_t elements);

}  // namespace freshet::delta
