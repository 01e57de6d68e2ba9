// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Addresses that a peer names for its further sockets, seen from here.

#include <string>

#include "transport/zmq/address.h"

namespace freshet {

/// Where to connect for the address of a data channel, "tcp://…" or "ucx://…", that a peer named which is reached at
/// `reached`: a peer that listens on every interface does not know by which one it is reached, so its wildcards become
/// the host of `reached`. Whoever opens the channel checks the address: what has no wildcard, or is no address, comes
/// back as it is.
std::string resolve_offered(const std::string& offered, const SocketAddress& reached);

}  // namespace freshet
