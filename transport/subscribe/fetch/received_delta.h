// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The element delta by which a tensor came from another host, as a device applies it: raw planes, small blocks. The
/// subscriber has applied and proved it on the host, and found its blocks by their heads.

#include <cstddef>
#include <memory>
#include <vector>

#include "core/base/result.h"
#include "core/delta/element_delta.h"
#include "core/gpu/kernels/delta_payload.h"

namespace freshet::detail {

/// Immutable.
struct ReceivedDelta {
  DeltaSpec spec;
  std::vector<std::byte> payload;
  gpu::PayloadPlaces places;

  Bytes blocks() const { return Bytes(payload).subspan(places.blocks_offset, places.blocks_bytes); }

  /// Of a received payload that leads from spec.base to spec.target. Null where that of a device is more than a quarter
  /// of the tensor's bytes (the device then copies these about as quickly as it applies the changes), or leads
  /// backwards.
  static std::shared_ptr<const ReceivedDelta> make(const DeltaSpec& spec, std::uint64_t tensor_bytes, Bytes payload);
};

}  // namespace freshet::detail
