// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Element deltas: the lossless, reversible difference between two versions of one tensor. When a training step changes
/// few elements (a bf16 cast of Adam's steps changes about one in a hundred), the delta is a hundredth of the tensor.
/// It names the segment that it starts from and the one that it leads to, and works in both directions: what
/// apply_delta made of the base, revert_delta turns back. The encoded form is described in core/FORMAT.md.
///
/// What makes the result proved, at a cost that grows with what changed and not with the tensor: the base was proved
/// before (its full digest was checked, or it was made from a proved base by a delta), and elements that the delta does
/// not touch keep the base's bits. For those that it touches the payload carries a sum, over all changed elements, of
/// h(index, new bits) - h(index, old bits), in two independent 64-bit lanes keyed by both segments' names. The receiver
/// forms the same sum from the bits that it read in memory and from those that it wrote there. Had one touched element
/// not held the base's bits, one index been another, or one element been touched that the sender did not touch, the
/// sums would differ, but for one chance in 2^128. The sum adds up in any order, so it is taken on the way.
/// Faults are found so, not forgers: who may send payloads is decided by the channel. And what memory lost in elements
/// that no delta touched is found by whoever hashes the whole segment now and then.
///
/// The functions may be called from any thread. Each thread that calls them keeps about 2 MiB of working memory; beyond
/// that and the payload they allocate nothing. Every vector level gives the same bytes.

#include <cstdint>
#include <optional>
#include <vector>

#include "core/dtype.h"
#include "core/ids.h"
#include "core/tensor.h"
#include "core/vector/level.h"

namespace freshet {

/// What a delta starts from, what it leads to, and what the elements are.
struct DeltaSpec {
  DType dtype = DType::f32;
  SegmentName base;
  SegmentName target;
};

/// What a payload says about itself.
struct DeltaInfo {
  SegmentName base;
  SegmentName target;
  DType dtype = DType::f32;
  std::uint64_t elements = 0;
  std::uint64_t changed_elements = 0;
};

/// The payload that turns `base`'s bytes into `target`'s, or nothing when it would be longer than `bytes_max` (or there
/// is no memory for it): the target itself then travels better. Stops as soon as that is known. NaNs, signed zeros and
/// infinities come out to the bit. REQUIRES: equal sizes, a multiple of the dtype's; nobody writes either meanwhile.
std::optional<std::vector<std::byte>> encode_delta(const DeltaSpec& spec, Bytes base, Bytes target,
                                                   std::uint64_t bytes_max);
std::optional<std::vector<std::byte>> encode_delta(const DeltaSpec& spec, Bytes base, Bytes target,
                                                   std::uint64_t bytes_max, VectorLevel level);

/// Checks the payload's seal and head, not what the blocks say. corrupt when it is damaged, unsupported when a later
/// version of the format wrote it.
Result<DeltaInfo> read_delta_info(Bytes payload);

/// Turns `memory` from the base's bytes into the target's, in place, and proves it.
///   failed_precondition  the payload is for another base, target, dtype or size; nothing was touched.
///   unsupported          the payload has another format version; nothing was touched.
///   corrupt              the payload is damaged (mostly seen before anything is touched), or the memory did not hold
///                        the base. The memory's content is then undefined: throw it away.
Result<DeltaInfo> apply_delta(const DeltaSpec& spec, Bytes payload, MutableBytes memory);
Result<DeltaInfo> apply_delta(const DeltaSpec& spec, Bytes payload, MutableBytes memory, VectorLevel level);

/// The inverse: `memory` holds the target, afterwards the base. Errors as apply_delta's.
Result<DeltaInfo> revert_delta(const DeltaSpec& spec, Bytes payload, MutableBytes memory);
Result<DeltaInfo> revert_delta(const DeltaSpec& spec, Bytes payload, MutableBytes memory, VectorLevel level);

/// How many elements differ. Reads everything. REQUIRES: as encode_delta.
std::uint64_t count_changed_elements(DType dtype, Bytes base, Bytes target);

/// About how many elements differ, from pages spread evenly over the tensor, `bytes_read_max` of each side at most.
/// Exact for a tensor that is not larger. Change that sits in a few places can be missed: 0 doesn't mean equal.
std::uint64_t estimate_changed_elements(DType dtype, Bytes base, Bytes target,
                                        std::uint64_t bytes_read_max = std::uint64_t{1} << 20);

}  // namespace freshet
