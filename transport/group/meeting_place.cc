// SPDX-License-Identifier: Apache-2.0
#include "transport/group/meeting_place.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstring>
#include <memory>

#include "core/base/file_descriptor.h"
#include "core/base/format.h"
#include "core/base/text.h"
#include "transport/zmq/address.h"

namespace freshet::group {
namespace {

struct HostAndPort {
  std::string host;  ///< Without brackets.
  std::string port;
};

Result<HostAndPort> split_meet(const std::string& meet) {
  FRESHET_ASSIGN(const SocketAddress address, SocketAddress::parse(meet, false, Reach::any_host));
  if (!address.is_tcp()) return refuse(format("{}: ranks meet at tcp://HOST:PORT", shown(meet)));
  const std::string rest = meet.substr(kTcpPrefix.size());
  const std::size_t colon = rest.rfind(':');
  std::string host = rest.substr(0, colon);
  if (host.starts_with('[')) host = host.substr(1, host.size() - 2);
  return HostAndPort{.host = std::move(host), .port = rest.substr(colon + 1)};
}

using Found = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

Result<Found> look_up(const HostAndPort& where) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failure = ::getaddrinfo(where.host.c_str(), where.port.c_str(), &hints, &found);
  if (failure != 0) {
    return fail(Code::not_found, format("look up {}: {}", shown(where.host), ::gai_strerror(failure)));
  }
  return Found(found, &::freeaddrinfo);
}

Result<std::string> numbers_of(const sockaddr* address, socklen_t bytes) {
  char host[NI_MAXHOST];
  const int failure = ::getnameinfo(address, bytes, host, sizeof host, nullptr, 0, NI_NUMERICHOST);
  if (failure != 0) return fail(Code::io_error, format("an address in numbers: {}", ::gai_strerror(failure)));
  return address->sa_family == AF_INET6 ? format("[{}]", host) : std::string(host);
}

}  // namespace

Result<std::string> meeting_address(const std::string& meet) {
  FRESHET_ASSIGN(const HostAndPort where, split_meet(meet));
  FRESHET_ASSIGN(const Found found, look_up(where));
  FRESHET_ASSIGN(const std::string host, numbers_of(found->ai_addr, found->ai_addrlen));
  return format("tcp://{}:{}", host, where.port);
}

Result<std::string> own_address_towards(const std::string& meet) {
  FRESHET_ASSIGN(const HostAndPort where, split_meet(meet));
  FRESHET_ASSIGN(const Found found, look_up(where));
  // Nothing is sent: connecting a datagram socket asks the kernel for the route alone.
  const FileDescriptor probe(::socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!probe) return fail_errno(errno, "a socket");
  if (::connect(probe.get(), found->ai_addr, found->ai_addrlen) != 0) {
    return fail_errno(errno, format("find the way to {}", shown(meet)));
  }
  sockaddr_storage own{};
  socklen_t bytes = sizeof own;
  if (::getsockname(probe.get(), reinterpret_cast<sockaddr*>(&own), &bytes) != 0)
    return fail_errno(errno, "getsockname");
  FRESHET_ASSIGN(const std::string host, numbers_of(reinterpret_cast<const sockaddr*>(&own), bytes));
  return format("tcp://{}:*", host);
}

}  // namespace freshet::group
