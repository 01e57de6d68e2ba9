// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A ZeroMQ client made of a plain TCP socket (ZMTP 3.0 with the NULL mechanism, RFC 23), for tests that are another
/// user of this host, or that look at what a server does with a connection.

#include <arpa/inet.h>
#include <grp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "core/base/file_descriptor.h"

namespace freshet::test {

class StrangeClient {
 public:
  /// `address` is "tcp://127.0.0.1:PORT".
  explicit StrangeClient(const std::string& address) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons(static_cast<std::uint16_t>(std::atoi(address.c_str() + address.rfind(':') + 1)));
    open_ = ::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0;
  }

  /// Shakes hands as a socket of that type ("DEALER", "SUB") and sends one message.
  void say(std::string_view type, std::string_view message) {
    std::string bytes("\xff\0\0\0\0\0\0\0\0\x7f\x03\0NULL", 16);
    bytes.resize(64, '\0');
    std::string ready("\x05READY\x0bSocket-Type\0\0\0", 21);
    ready += static_cast<char>(type.size());
    ready += type;
    bytes += '\x04';
    bytes += static_cast<char>(ready.size());
    bytes += ready;
    send(bytes);
    char greeting[64];
    open_ = open_ && read(greeting, sizeof greeting);
    // What is sent before the other side is ready too would be no message.
    if (take_frame() == Frame::command)
      send(std::string{'\0', static_cast<char>(message.size())} + std::string(message));
  }

  /// Whether any message comes before the other side ends the connection.
  bool hears() {
    Frame frame = take_frame();
    while (frame == Frame::command) frame = take_frame();
    return frame == Frame::message;
  }

 private:
  enum class Frame { message, command, none };

  void send(const std::string& bytes) {
    open_ = open_ && ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) >= 0;
  }
  /// The next frame's kind; a command is read whole.
  Frame take_frame() {
    unsigned char flags = 0, length = 0;
    if (!read(&flags, 1)) return Frame::none;
    if ((flags & 4) == 0) return Frame::message;
    if ((flags & 2) != 0 || !read(&length, 1)) return Frame::none;  // No command is that long.
    char body[255];
    return length == 0 || read(body, length) ? Frame::command : Frame::none;
  }
  bool read(void* to, std::size_t bytes) { return open_ && ::recv(socket_.get(), to, bytes, MSG_WAITALL) > 0; }

  FileDescriptor socket_;
  bool open_ = false;
};

/// Another user of this host that waits, in a process made while this one had no threads, until it is told to act.
class OtherUser {
 public:
  static constexpr uid_t kUser = 65534;
  /// `act` is given the text of go(), and its answer is what go() returns.
  explicit OtherUser(const std::function<bool(const std::string&)>& act) {
    int to[2], from[2];
    if (::pipe(to) != 0 || ::pipe(from) != 0) return;
    child_ = ::fork();
    if (child_ == 0) {
      ::close(to[1]);
      std::string text;
      char byte = 0;
      while (::read(to[0], &byte, 1) == 1 && byte != '\n') text += byte;
      const bool changed = ::setgroups(0, nullptr) == 0 && ::setresuid(kUser, kUser, kUser) == 0;
      const char answer = !changed ? 'x' : act(text) ? 'y' : 'n';
      ::_exit(::write(from[1], &answer, 1) == 1 ? 0 : 1);
    }
    ::close(to[0]);
    ::close(from[1]);
    to_ = FileDescriptor(to[1]);
    from_ = FileDescriptor(from[0]);
  }
  ~OtherUser() {
    to_ = FileDescriptor();
    if (child_ > 0) ::waitpid(child_, nullptr, 0);
  }
  OtherUser(const OtherUser&) = delete;
  OtherUser& operator=(const OtherUser&) = delete;

  /// 'y' or 'n' as `act` says; 'x' when it could not become another user, '?' when it died.
  char go(const std::string& text) {
    const std::string line = text + "\n";
    char answer = '?';
    if (::write(to_.get(), line.data(), line.size()) < 0 || ::read(from_.get(), &answer, 1) != 1) return '?';
    return answer;
  }

 private:
  pid_t child_ = -1;
  FileDescriptor to_;
  FileDescriptor from_;
};

/// Another user of this host that serves, in a process made while this one had no threads, for as long as this exists.
class OtherUsersServer {
 public:
  struct Served {
    std::shared_ptr<void> server;
    std::string address;  ///< Empty: it could not be opened.
  };
  explicit OtherUsersServer(const std::function<Served()>& open) {
    int to[2], from[2];
    if (::pipe(to) != 0 || ::pipe(from) != 0) return;
    child_ = ::fork();
    if (child_ == 0) {
      ::close(to[1]);
      const bool changed =
          ::setgroups(0, nullptr) == 0 && ::setresuid(OtherUser::kUser, OtherUser::kUser, OtherUser::kUser) == 0;
      const Served served = changed ? open() : Served{};
      const std::string line = served.address + "\n";
      char byte = 0;
      // Until the other end is closed.
      ::_exit(::write(from[1], line.data(), line.size()) < 0 || ::read(to[0], &byte, 1) != 0 ? 1 : 0);
    }
    ::close(to[0]);
    ::close(from[1]);
    stop_ = FileDescriptor(to[1]);
    const FileDescriptor told(from[0]);
    for (char byte = 0; ::read(told.get(), &byte, 1) == 1 && byte != '\n';) address_ += byte;
  }
  ~OtherUsersServer() {
    stop_ = FileDescriptor();
    if (child_ > 0) ::waitpid(child_, nullptr, 0);
  }
  OtherUsersServer(const OtherUsersServer&) = delete;
  OtherUsersServer& operator=(const OtherUsersServer&) = delete;

  const std::string& address() const { return address_; }

 private:
  pid_t child_ = -1;
  FileDescriptor stop_;
  std::string address_;
};

}  // namespace freshet::test
