// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Addresses of sockets, as people write them and as ZeroMQ takes them: a socket of this user's ("ipc://" and an
/// absolute path) or a port ("tcp://127.0.0.1:7070", "tcp://[::1]:7070", "tcp://trainer.example:7070"; to listen also
/// "tcp://*:7070", every interface, and "tcp://0.0.0.0:7070", every one of IPv4). Closed by default: who has no keys
/// gets no further than loopback.

#include <optional>
#include <string>
#include <string_view>

#include "core/base/result.h"
#include "transport/shm/socket_path.h"

namespace freshet {

/// What every TCP address begins with.
inline constexpr std::string_view kTcpPrefix = "tcp://";

/// How far an address may reach: beyond this host only for those who have keys.
enum class Reach : std::uint8_t { this_host, any_host };

/// A checked address. Movable; keep it as long as its socket.
class SocketAddress {
 public:
  /// invalid_argument for what is no address, and for one beyond `reach`; the message then says what to do. Names of
  /// hosts, which have to be looked up, are for connecting; the port may be "*" where a socket is bound.
  static Result<SocketAddress> parse(const std::string& text, bool for_binding, Reach reach = Reach::this_host);

  const std::string& text() const { return text_; }
  /// What ZeroMQ is given: not the same for a path that is too long for the kernel.
  std::string endpoint() const { return path_ ? "ipc://" + path_->text() : text_; }
  bool is_tcp() const { return !path_; }
  bool is_ipv6() const { return host_.starts_with('['); }
  /// It names no interface, but all of them.
  bool is_wildcard() const { return host_ == "*" || host_ == "0.0.0.0" || host_ == "[::]"; }

  /// This port at `host`, an address's that reached the same process. REQUIRES: both are tcp.
  SocketAddress at_host_of(const SocketAddress& host) const;
  SocketAddress at_host(std::string host) const;
  /// What a neighbour on this host connects to: loopback for a wildcard, otherwise the same.
  std::string from_this_host() const;

 private:
  static Result<SocketAddress> parse_tcp(const std::string& text, bool for_binding, Reach reach);
  SocketAddress(std::string text, SocketPath path) : text_(std::move(text)), path_(std::move(path)) {}
  SocketAddress(std::string host, std::string port);

  std::string text_;
  std::optional<SocketPath> path_;
  std::string host_;  ///< In brackets when it is IPv6; empty for ipc.
  std::string port_;
};

}  // namespace freshet
