#pragma once

/// Addresses of control and announcement sockets, as people write them and as ZeroMQ takes them. Closed by default: a
/// socket of this user's ("ipc://" and an absolute path) or a loopback port ("tcp://127.0.0.1:7070"), nothing else.

#include <optional>
#include <string>

#include "core/result.h"
#include "transport/shm/socket_path.h"

namespace freshet {

/// A checked address. Movable; keep it as long as its socket.
class SocketAddress {
 public:
  /// invalid_argument for anything that is not of this host. The port may be "*" where a socket is bound.
  static Result<SocketAddress> parse(const std::string& text, bool for_binding);

  const std::string& text() const { return text_; }
  /// What ZeroMQ is given: not the same for a path that is too long for the kernel.
  std::string endpoint() const { return path_ ? "ipc://" + path_->text() : text_; }
  bool is_tcp() const { return !path_; }

 private:
  SocketAddress(std::string text, std::optional<SocketPath> path) : text_(std::move(text)), path_(std::move(path)) {}
  std::string text_;
  std::optional<SocketPath> path_;
};

}  // namespace freshet
