// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Element deltas: the lossless, reversible difference between two versions of one tensor. When a training step changes
/// few elements (a bf16 cast of Adam's steps changes about one in a hundred), the delta is a hundredth of the tensor.
/// The delta names the segment that it starts from and the segment that it leads to. It works in both directions:
/// revert_delta undoes apply_delta. core/FORMAT.md describes the encoded form.
///
/// The proof of the result costs time for the changed elements, not for the whole tensor. The base was proved before:
/// its full digest was checked, or a delta made it from a proved base. Untouched elements keep the base's bits. For the
/// touched elements, the payload has a sum over all changed elements of h(index, new bits) - h(index, old bits), in two
/// independent 64-bit lanes, keyed by both segments' names. The receiver forms the same sum from the bits that it reads
/// in memory and the bits that it writes. The sums differ in three cases (except for one chance in 2^128): a touched
/// element did not hold the base's bits, an index was wrong, or an element was touched that the sender did not touch.
/// The sum adds up in any order, so it is computed on the way. The sum finds faults, not forgers: the channel decides
/// who may send payloads. A memory fault in an untouched element is found only by a digest of the whole segment, which
/// the subscriber takes from time to time.
///
/// The functions may be called from any thread. Each thread that calls them keeps about 2 MiB of working memory; beyond
/// that and the payload they allocate nothing. Every vector level gives the same bytes.

#include <cstdint>
#include <optional>
#include <vector>

#include "core/model/dtype.h"
#include "core/model/ids.h"
#include "core/model/tensor.h"
#include "core/vector/level.h"

namespace freshet {

/// A delta's base, its target, and the type of the elements.
struct DeltaSpec {
  DType dtype = DType::f32;
  SegmentName base;
  SegmentName target;
};

/// The head of a payload.
struct DeltaInfo {
  SegmentName base;
  SegmentName target;
  DType dtype = DType::f32;
  std::uint64_t elements = 0;
  std::uint64_t changed_elements = 0;
};

/// The payload that turns `base`'s bytes into `target`'s. Nothing: the payload would be longer than `bytes_max`, or
/// there is no memory for it; then send the whole target. Stops as soon as that is known. NaNs, signed zeros and
/// infinities are exact to the bit. REQUIRES: equal sizes, a multiple of the dtype's; nobody writes either meanwhile.
std::optional<std::vector<std::byte>> encode_delta(const DeltaSpec& spec, Bytes base, Bytes target,
                                                   std::uint64_t bytes_max, VectorLevel level = vector_level());

/// Checks the payload's seal and head, not its blocks. corrupt: the payload is damaged. unsupported: a later version of
/// the format wrote it.
Result<DeltaInfo> read_delta_info(Bytes payload);

/// Turns `memory` from the base's bytes into the target's, in place, and proves it.
///   failed_precondition  the payload is for another base, target, dtype or size; nothing was touched.
///   unsupported          the payload has another format version; nothing was touched.
///   corrupt              the payload is damaged (mostly seen before anything is touched), or the memory did not hold
///                        the base. The memory's content is then undefined: throw it away.
Result<DeltaInfo> apply_delta(const DeltaSpec& spec, Bytes payload, MutableBytes memory,
                              VectorLevel level = vector_level());

/// The inverse: `memory` holds the target, afterwards the base. Errors as apply_delta's.
Result<DeltaInfo> revert_delta(const DeltaSpec& spec, Bytes payload, MutableBytes memory,
                               VectorLevel level = vector_level());

/// How many elements differ. Reads everything. REQUIRES: as encode_delta.
std::uint64_t count_changed_elements(DType dtype, Bytes base, Bytes target);

/// About how many elements differ, from places spread evenly over the tensor, `bytes_read_max` of each side at most.
/// Exact for a tensor that is not larger. Change that sits in a few places can be missed: 0 doesn't mean equal.
std::uint64_t estimate_changed_elements(DType dtype, Bytes base, Bytes target,
                                        std::uint64_t bytes_read_max = std::uint64_t{1} << 20);

}  // namespace freshet
