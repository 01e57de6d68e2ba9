// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The host's half of element deltas that a device writes and reads: keys, heads, seals, and the table of blocks.

#include <cstdint>
#include <span>
#include <vector>

#include "core/delta/element_delta.h"
#include "core/gpu/kernels/delta_kernels.h"

namespace freshet::gpu {

/// What kPack and kApply must know of a tensor of so many elements.
DeltaElements delta_elements(const DeltaSpec& spec, std::uint64_t elements);

/// The payload of a tensor that kPack packed: apply_delta() takes it as it takes encode_delta()'s. `blocks`: the bytes
/// that kPack wrote. REQUIRES: result.bytes of them.
std::vector<std::byte> sealed_payload(const DeltaSpec& spec, std::uint64_t elements, const PackResult& result,
                                      Bytes blocks);

/// A payload that was read so far as a device does not read it.
struct PayloadPlaces {
  DeltaInfo info;
  std::uint64_t blocks_offset = 0;  ///< In the payload.
  std::uint64_t blocks_bytes = 0;
  std::vector<BlockPlace> places;
  std::uint64_t sum_low = 0;
  std::uint64_t sum_high = 0;
};

/// Checks the payload's seal and head, and finds its blocks by their heads. Planes are checked by kApply alone.
///   corrupt              the payload is damaged.
///   failed_precondition  it is another delta than `spec`'s, or of another number of elements.
///   unsupported          a device does not apply it (planes that are packed, or large blocks): apply_delta() does.
Result<PayloadPlaces> find_places(const DeltaSpec& spec, std::uint64_t elements, Bytes payload);

/// What kApply's result means. corrupt, unsupported: as above; the memory's content is then undefined.
Status check_applied(const PayloadPlaces& payload, const ApplyResult& result);

}  // namespace freshet::gpu
