// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The kinds of channels. A channel is the way by which a version's bytes go from one process to another.

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace freshet {

/// `shm`: the subscriber maps the publisher's memory, on the same host. `file`: the subscriber reads a folder that both
/// sides see. `ucx`, `zmq`: the subscriber fetches the bytes under a lease, over UCX (loopback and trusted fabrics) or
/// ZeroMQ (any network, encrypted with keys). The numbers are the wire's; they are no order of preference.
enum class ChannelKind : std::uint8_t { shm = 0, ucx = 1, zmq = 2, file = 3 };
/// "shm", "ucx", "zmq", "file".
std::string_view to_string(ChannelKind kind);

/// The channels that a process offers or uses for fetches. Not set: the kinds that suit its address. An empty list: no
/// channel. Otherwise these kinds, of `ucx` and `zmq`; a kind that cannot be opened is then an error.
using ChannelChoice = std::optional<std::vector<ChannelKind>>;

}  // namespace freshet
