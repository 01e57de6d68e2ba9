// SPDX-License-Identifier: Apache-2.0
#pragma once

/// An HTTP server on loopback that answers each request with what a test's script says, byte by byte: wrong answers,
/// half ones, none. Real servers are in other headers; this one does what they do only when they break.

#include <arpa/inet.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <charconv>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace freshet {

class ScriptedHttpServer {
 public:
  struct Request {
    std::string head;  ///< Up to the empty line.
    std::string body;
    int number = 0;  ///< From 0, of all requests of this server.
  };
  struct Answer {
    std::string bytes;
    bool close = false;  ///< Closes the connection after the bytes.
    bool hang = false;   ///< Keeps it open, and answers no more on it.
    bool leave = false;  ///< Refuses further connections, before the bytes.
  };
  using Script = std::function<Answer(const Request&)>;

  /// An answer with a right length.
  static Answer answer(const std::string& status, const std::string& headers, const std::string& body) {
    return {.bytes = "HTTP/1.1 " + status + "\r\n" + headers + "Content-Length: " + std::to_string(body.size()) +
                     "\r\n\r\n" + body};
  }

  /// Closes each connection in the middle of a body of more than `body_bytes_max`.
  explicit ScriptedHttpServer(Script script, std::size_t body_bytes_max = std::size_t{1} << 30)
      : script_(std::move(script)), body_bytes_max_(body_bytes_max) {
    wake_ = ::eventfd(0, EFD_CLOEXEC);
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    ::bind(listener_, reinterpret_cast<const sockaddr*>(&address), size);
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    ::listen(listener_, 64);
    port_ = ntohs(address.sin_port);
    acceptor_ = std::thread([this] { accept_all(); });
  }
  ~ScriptedHttpServer() {
    const std::uint64_t one = 1;
    static_cast<void>(::write(wake_, &one, sizeof one));
    acceptor_.join();
    for (std::thread& connection : connections_) connection.join();
    ::close(listener_);
    ::close(wake_);
  }
  ScriptedHttpServer(const ScriptedHttpServer&) = delete;
  ScriptedHttpServer& operator=(const ScriptedHttpServer&) = delete;

  std::string endpoint() const { return "http://127.0.0.1:" + std::to_string(port_); }
  int requests() const { return requests_; }
  int connections() const { return accepted_; }

 private:
  /// False: the server ends.
  bool wait_for(int socket) const {
    pollfd both[2] = {{.fd = socket, .events = POLLIN, .revents = 0}, {.fd = wake_, .events = POLLIN, .revents = 0}};
    while (::poll(both, 2, -1) < 0) continue;
    return both[1].revents == 0;
  }

  void accept_all() {
    while (wait_for(listener_)) {
      const int socket = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (socket < 0 && errno == EINVAL) return;  // The listener is shut.
      if (socket < 0) continue;
      ++accepted_;
      connections_.emplace_back([this, socket] {
        serve(socket);
        ::close(socket);
      });
    }
  }

  bool read_more(int socket, std::string& text) const {
    char bytes[65536];
    if (!wait_for(socket)) return false;
    const ssize_t count = ::recv(socket, bytes, sizeof bytes, 0);
    if (count <= 0) return false;
    text.append(bytes, static_cast<std::size_t>(count));
    return true;
  }

  static std::size_t length_in(const std::string& head) {
    const std::size_t at = head.find("Content-Length: ");
    std::size_t length = 0;
    if (at != std::string::npos) std::from_chars(head.data() + at + 16, head.data() + head.size(), length);
    return length;
  }

  void serve(int socket) {
    std::string text;
    for (;;) {
      std::size_t end = text.find("\r\n\r\n");
      for (; end == std::string::npos; end = text.find("\r\n\r\n")) {
        if (!read_more(socket, text)) return;
      }
      Request request{.head = text.substr(0, end + 2), .body = {}, .number = requests_++};
      text.erase(0, end + 4);
      const std::size_t length = length_in(request.head);
      if (request.head.find("Expect: 100-continue") != std::string::npos)
        send_all(socket, "HTTP/1.1 100 Continue\r\n\r\n");
      while (text.size() < length) {
        if (!read_more(socket, text) || text.size() > body_bytes_max_) return;
      }
      request.body = text.substr(0, length);
      text.erase(0, length);
      const Answer answer = script_(request);
      if (answer.leave) ::shutdown(listener_, SHUT_RDWR);
      if (!send_all(socket, answer.bytes) || answer.close) return;
      if (answer.hang) {
        while (read_more(socket, text)) text.clear();
        return;
      }
    }
  }

  static bool send_all(int socket, const std::string& bytes) {
    for (std::size_t at = 0; at < bytes.size();) {
      const ssize_t count = ::send(socket, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
      if (count <= 0) return false;
      at += static_cast<std::size_t>(count);
    }
    return true;
  }

  const Script script_;
  const std::size_t body_bytes_max_;
  int wake_ = -1;
  int listener_ = -1;
  int port_ = 0;
  std::atomic<int> requests_{0};
  std::atomic<int> accepted_{0};
  std::vector<std::thread> connections_;  ///< Of the acceptor's thread, until it has ended.
  std::thread acceptor_;
};

}  // namespace freshet
