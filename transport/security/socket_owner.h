// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The user at the other end of a connection within this host. A loopback port is open to every user of the host, and
/// so is the place of a port where nobody listens yet. The kernel knows whose socket each connection has at its other
/// end. Without keys that decides who comes in, and whom the connecting side believes.

#include <netinet/in.h>
#include <sys/types.h>

#include <cstdint>
#include <string>

#include "core/base/result.h"
#include "transport/security.h"

namespace freshet {

/// The two ends of a connection as this side sees them. Both of one family, IPv4 or IPv6.
struct ConnectionEnds {
  sockaddr_storage own{};
  sockaddr_storage peer{};
};
Result<ConnectionEnds> ends_of(int descriptor);

/// The user whose living process has the socket at the connection's other end: by asking the kernel for that socket
/// (sock_diag), or where there is no asking, from its tables /proc/net/tcp and tcp6. not_found when nobody has it: the
/// other end is on another host, or was closed. A closed socket's user is not told any more, so it counts as nobody's.
/// Any thread.
Result<uid_t> owner_of_peer(const ConnectionEnds& ends);
Result<uid_t> owner_by_asking(const ConnectionEnds& ends);
Result<uid_t> owner_by_table(const ConnectionEnds& ends, const std::string& folder = "/proc/net");

/// Who may be at the other end of a connection without keys: this process's own user (and root, who may read this
/// process's memory anyway), or all users of the host. Both sides ask: who listens, and who connects.
enum class Neighbours : std::uint8_t { same_user, all };
/// Keys decide by themselves.
inline Neighbours neighbours_admitted(const SecurityOptions& options, bool has_keys) {
  return has_keys || options.open_loopback ? Neighbours::all : Neighbours::same_user;
}

/// failed_precondition, with who it is, unless the other end of the connection is this user's or root's; unavailable
/// when nobody has it any more. Of a connected Unix socket, the other end is whoever listened there. Any thread.
Status check_same_user(int descriptor);
/// The same of whoever listens at a TCP address of this host, for connections that a library makes out of sight.
/// unavailable when nobody listens there.
Status check_listener(const sockaddr_storage& address);

}  // namespace freshet
