// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A peer that speaks ZMTP 3.1 without keys through a bare TCP socket, so that it can do what ZeroMQ's own sockets
/// would not: messages without an end, commands in the middle, connections that are reset.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/file_descriptor.h"

namespace freshet::test {

class RawZmtp {
 public:
  /// To "tcp://127.0.0.1:PORT", as a socket of that type ("DEALER"). Not connected when that failed.
  explicit RawZmtp(const std::string& address, std::string_view type = "DEALER") : RawZmtp(connect(address), type) {}
  /// A connection that was accepted.
  RawZmtp(FileDescriptor socket, std::string_view type) : socket_(std::move(socket)) {
    if (!socket_) return;
    std::string hello("\xFF\0\0\0\0\0\0\0\1\x7F\3\1NULL", 16);
    hello.resize(64, '\0');
    say(hello);
    std::string ready("\5READY\13Socket-Type\0\0\0", 21);
    ready.push_back(static_cast<char>(type.size()));
    ready.append(type);
    say(frame(kCommand, ready));
  }

  explicit operator bool() const { return static_cast<bool>(socket_); }
  int descriptor() const { return socket_.get(); }

  static constexpr int kMore = 1;
  static constexpr int kCommand = 4;
  static std::string frame(int flags, std::string_view body) {
    std::string bytes;
    if (body.size() > 255) {
      bytes.push_back(static_cast<char>(flags | 2));
      for (int shift = 56; shift >= 0; shift -= 8) bytes.push_back(static_cast<char>(body.size() >> shift));
    } else {
      bytes.push_back(static_cast<char>(flags));
      bytes.push_back(static_cast<char>(body.size()));
    }
    return bytes.append(body);
  }
  /// Asks for a PONG within ten seconds.
  static std::string ping() { return frame(kCommand, std::string_view("\4PING\0\144context", 14)); }

  /// False when the other end has ended the connection.
  bool say(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }
  /// Reads its greeting and its READY: messages that come before are an error. False when they do not come.
  bool shake_hands() {
    constexpr std::size_t kGreetingBytes = 64;
    constexpr std::size_t kHeadBytes = 2;
    std::string got;
    const auto is_whole = [&] {
      return got.size() >= kGreetingBytes + kHeadBytes &&
             got.size() >= kGreetingBytes + kHeadBytes + static_cast<unsigned char>(got[kGreetingBytes + 1]);
    };
    while (!is_whole()) {
      char bytes[256];
      const ssize_t count = wait_for_word() ? ::recv(socket_.get(), bytes, sizeof bytes, 0) : -1;
      if (count <= 0) return false;
      got.append(bytes, static_cast<std::size_t>(count));
    }
    return true;
  }
  /// Until it has said something. False when it did not within a minute.
  bool wait_for_word() {
    pollfd item{.fd = socket_.get(), .events = POLLIN, .revents = 0};
    return ::poll(&item, 1, 60'000) == 1;
  }
  /// Reads and forgets what came so far; false when the connection has ended.
  bool read_on() {
    char bytes[4096];
    for (;;) {
      const ssize_t got = ::recv(socket_.get(), bytes, sizeof bytes, MSG_DONTWAIT);
      if (got > 0) continue;
      return got < 0 && (errno == EAGAIN || errno == EINTR);
    }
  }
  /// Waits until the other end has ended the connection, or a minute.
  bool is_put_out() {
    while (read_on()) {
      if (!wait_for_word()) return false;
    }
    return true;
  }
  /// Ends it as a crash does: with a reset, and whatever is on its way is lost.
  void reset() {
    const linger none{.l_onoff = 1, .l_linger = 0};
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &none, sizeof none);
    socket_ = FileDescriptor();
  }

  static sockaddr_in address_of(const std::string& address) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons(static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
    return to;
  }

 private:
  static FileDescriptor connect(const std::string& address) {
    const sockaddr_in to = address_of(address);
    FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!socket || ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0) return {};
    return socket;
  }
  FileDescriptor socket_;
};

}  // namespace freshet::test
