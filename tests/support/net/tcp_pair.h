// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A TCP connection between two hosts of a lab, both ends in this process.

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <string>

#include "tests/support/net/lab/network.h"

namespace freshet::lab {

struct TcpPair {
  FileDescriptor client;
  FileDescriptor server;
};

inline sockaddr_in socket_address(const std::string& address, std::uint16_t port) {
  sockaddr_in out{};
  out.sin_family = AF_INET;
  out.sin_port = htons(port);
  ::inet_pton(AF_INET, address.c_str(), &out.sin_addr);
  return out;
}

/// `address`: where the listening host is reached, which decides by which interface.
inline Result<TcpPair> connect_tcp(const NetworkNamespace& from, const NetworkNamespace& to,
                                   const std::string& address) {
  constexpr std::uint16_t kPort = 7070;
  sockaddr_in where = socket_address(address, kPort);
  FileDescriptor listener;
  FRESHET_TRY(to.run([&]() -> Status {
    listener = FileDescriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int on = 1;
    ::setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (::bind(listener.get(), reinterpret_cast<sockaddr*>(&where), sizeof(where)) != 0 ||
        ::listen(listener.get(), 1) != 0)
      return fail_errno(errno, "listen");
    return {};
  }));
  TcpPair pair;
  FRESHET_TRY(from.run([&]() -> Status {
    pair.client = FileDescriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::connect(pair.client.get(), reinterpret_cast<sockaddr*>(&where), sizeof(where)) != 0)
      return fail_errno(errno, "connect");
    return {};
  }));
  pair.server = FileDescriptor(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!pair.server) return fail_errno(errno, "accept");
  const int on = 1;
  ::setsockopt(pair.client.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  ::setsockopt(pair.server.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  return pair;
}

}  // namespace freshet::lab
