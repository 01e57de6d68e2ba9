// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Addresses that a peer names for its further sockets, seen from here.

#include <string>

#include "core/base/result.h"
#include "transport/zmq/address.h"

namespace freshet {

/// Where to connect for `named`, which a peer said that was reached at `reached`: a peer that listens on every
/// interface does not know by which one it is reached, so its wildcards become the host of `reached`. Errors as
/// SocketAddress::parse.
Result<SocketAddress> resolve_named(const std::string& named, const SocketAddress& reached, Reach reach);

/// The same for the address of a data channel, "tcp://…" or "ucx://…", which whoever opens the channel checks: what
/// has no wildcard, or is no address, comes back as it is.
std::string resolve_offered(const std::string& offered, const SocketAddress& reached);

}  // namespace freshet
