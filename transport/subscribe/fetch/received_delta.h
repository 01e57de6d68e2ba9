// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The element delta by which a tensor came from another host, as a device applies it: raw planes, small blocks. The
/// subscriber has applied and proved it on the host, and found its blocks by their heads.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/base/result.h"
#include "core/delta/element_delta.h"
#include "core/gpu/kernels/delta_payload.h"

namespace freshet::detail {

/// Of one version's deltas, in a server's memory and on its device. Tensors beyond it are copied whole.
constexpr std::uint64_t kReceivedDeltasBytesMax = std::uint64_t{64} << 20;

/// Immutable.
struct ReceivedDelta {
  DeltaSpec spec;
  std::vector<std::byte> payload;
  gpu::PayloadPlaces places;

  Bytes blocks() const { return Bytes(payload).subspan(places.blocks_offset, places.blocks_bytes); }
  /// It takes so much of the deltas' table, there as here.
  std::uint64_t table_bytes() const;

  /// Of a received payload that leads from spec.base to spec.target. Null where that of a device is more than a quarter
  /// of the tensor's bytes (the device then copies these about as quickly as it applies the changes), takes more than
  /// `room` of a table, or leads backwards; and for a tensor of 64 KiB or less, which goes with others.
  static std::shared_ptr<const ReceivedDelta> make(const DeltaSpec& spec, std::uint64_t tensor_bytes, Bytes payload,
                                                   std::uint64_t room = kReceivedDeltasBytesMax);
};

}  // namespace freshet::detail
