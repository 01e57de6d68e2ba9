// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The frames of a door (transport/WIRE.md, "The door"): fixed frames of little-endian 64-bit words, one per packet of
/// a SOCK_SEQPACKET socket. A subscriber sends one Knock; the publisher answers with slab frames, the first of them at
/// once (also when it has no slab yet: that is the welcome), further ones as it makes more slabs. Slabs of device
/// memory are counted apart, and have frames of their own; only a session gets them that was granted a version there.

#include <cstdint>
#include <vector>

#include "core/base/result.h"
#include "core/model/tensor.h"
#include "transport/protocol/messages.h"

namespace freshet::shm {

struct Knock {
  protocol::SessionId session = 0;
  std::uint64_t token = 0;
};

/// The sizes of consecutive slabs; as many descriptors come with the frame, in the same order.
struct SlabFrame {
  std::uint64_t first_slab = 0;
  std::vector<std::uint64_t> slab_bytes;
  bool is_on_device = false;
};

inline constexpr std::size_t kSlabsPerFrameMax = 64;
/// Descriptors that one subscriber takes from one publisher: far above what an arena makes, far below a process's
/// limit.
inline constexpr std::size_t kDoorSlabsMax = 512;
inline constexpr std::size_t kKnockBytes = 3 * 8;
inline constexpr std::size_t kSlabFrameBytesMax = (3 + kSlabsPerFrameMax) * 8;

std::vector<std::byte> encode(const Knock& knock);
std::vector<std::byte> encode(const SlabFrame& frame);
Result<Knock> decode_knock(Bytes bytes);
Result<SlabFrame> decode_slab_frame(Bytes bytes);

}  // namespace freshet::shm
