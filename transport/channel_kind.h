// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The kinds of channels, and what each can. A channel is the way by which a version's bytes go from one process to
/// another.

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "core/model/memory_kind.h"

namespace freshet {

/// `shm`: the subscriber maps the publisher's memory, on the same host. `file`: the subscriber reads a folder that both
/// sides see. `ucx`, `zmq`: the subscriber fetches the bytes under a lease, over UCX (loopback and trusted fabrics) or
/// ZeroMQ (any network, encrypted with keys). `cuda_ipc`: beside `shm`, the subscriber maps the publisher's memory on
/// the GPU that both use; nobody chooses it, and no Want names it. `nccl`: as `zmq`, but large tensors go over NCCL, to
/// all that fetch at once (trusted fabrics). The numbers are the wire's.
enum class ChannelKind : std::uint8_t { shm = 0, ucx = 1, zmq = 2, file = 3, cuda_ipc = 4, nccl = 5 };

/// The abilities of a channel; the same at both of its sides.
struct ChannelTraits {
  std::string_view name = "unknown";
  int preference = 0;                 ///< A channel with a smaller number is taken first.
  bool fetches = false;               ///< Under a lease, from a server (transport/channel/channel.h).
  bool reaches_other_hosts = false;   ///< Otherwise this host alone.
  bool needs_trusted_fabric = false;  ///< To reach other hosts: the channel knows no keys.
  bool registers_memory = false;      ///< ChannelServer::register_memory() saves something.
  /// The kinds of memory that its bytes may lie in, a bit each: where an answer is sent from, and where it is received.
  std::uint32_t memory = 1u << static_cast<unsigned>(MemoryKind::host);

  constexpr bool takes(MemoryKind kind) const { return (memory >> static_cast<unsigned>(kind) & 1) != 0; }
};

/// By kind.
inline constexpr std::array<ChannelTraits, 6> kChannelTraits = {{
    {.name = "shm", .preference = 0},
    {.name = "ucx",
     .preference = 2,
     .fetches = true,
     .reaches_other_hosts = true,
     .needs_trusted_fabric = true,
     .registers_memory = true},
    {.name = "zmq", .preference = 3, .fetches = true, .reaches_other_hosts = true},
    {.name = "file", .preference = 4, .reaches_other_hosts = true},
    {.name = "cuda_ipc", .preference = 5, .memory = 1u << static_cast<unsigned>(MemoryKind::device)},
    {.name = "nccl", .preference = 1, .fetches = true, .reaches_other_hosts = true, .needs_trusted_fabric = true},
}};
/// Of a kind that is not known: nothing.
constexpr ChannelTraits traits_of(ChannelKind kind) {
  const auto at = static_cast<std::size_t>(kind);
  return at < kChannelTraits.size() ? kChannelTraits[at] : ChannelTraits();
}
/// "shm", "ucx", "zmq", "file", "cuda_ipc", "nccl".
constexpr std::string_view to_string(ChannelKind kind) { return traits_of(kind).name; }

/// The subscriber maps the publisher's memory, through its door.
constexpr bool is_mapped(ChannelKind kind) { return kind == ChannelKind::shm || kind == ChannelKind::cuda_ipc; }

/// The channels that a process offers or uses for fetches. Not set: the kinds that suit its address. An empty list: no
/// channel. Otherwise these kinds, of `ucx`, `nccl` and `zmq`; a kind that cannot be opened is then an error.
using ChannelChoice = std::optional<std::vector<ChannelKind>>;

}  // namespace freshet
