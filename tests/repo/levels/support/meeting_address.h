// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Where the ranks of a test's job meet.

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <random>
#include <string>

namespace freshet::test {

/// A free port below those that the system gives out by itself: no rank's own socket, nor one that connects, can have
/// it before rank 0 listens there.
inline int meeting_port() {
  std::random_device random;
  for (int tries = 0; tries < 1000; ++tries) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(10'000 + random() % 20'000));
    const int probe = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool is_free = ::bind(probe, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
    ::close(probe);
    if (is_free) return ntohs(address.sin_port);
  }
  return 0;
}

/// "tcp://127.0.0.1:PORT", free.
inline std::string meeting_address() { return "tcp://127.0.0.1:" + std::to_string(meeting_port()); }

}  // namespace freshet::test
