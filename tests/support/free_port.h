// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A port for a server that a test starts and that cannot choose one itself. Somebody else may take it in between.

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

namespace freshet {

/// Of TCP, on loopback.
inline int free_port() {
  const int probe = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ::bind(probe, reinterpret_cast<const sockaddr*>(&address), size);
  ::getsockname(probe, reinterpret_cast<sockaddr*>(&address), &size);
  ::close(probe);
  return ntohs(address.sin_port);
}

}  // namespace freshet
