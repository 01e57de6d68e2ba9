#pragma once

/// A Redis server of a test's own: on a Unix socket and a loopback port, in a folder of its own, which can be stopped,
/// killed and started again at the same place.

#include <arpa/inet.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/support/child_process.h"
#include "tests/support/temporary_folder.h"

namespace freshet {

class RedisServer {
 public:
  struct Options {
    bool durable = false;  ///< Every write is in a file, as with `appendonly yes`.
    std::string password;
  };
  explicit RedisServer(Options options) : options_(std::move(options)), port_(free_port()) { start(); }
  RedisServer() : RedisServer(Options{}) {}

  /// Non-empty when there is none on this machine.
  const std::string& why_not() const { return why_not_; }

  std::string unix_address() const { return "redis+unix://" + credentials() + socket(); }
  std::string tcp_address() const { return "redis://" + credentials() + "127.0.0.1:" + std::to_string(port_) + "/0"; }
  std::string socket() const { return folder_ / "redis.socket"; }

  void start() {
    const char* const program = "/usr/bin/redis-server";
    if (::access(program, X_OK) != 0) {
      why_not_ = "there is no redis-server (Debian package redis-server)";
      return;
    }
    std::vector<std::string> words = {program,
                                      "--port",
                                      std::to_string(port_),
                                      "--bind",
                                      "127.0.0.1",
                                      "--unixsocket",
                                      socket(),
                                      "--dir",
                                      folder_.path(),
                                      "--save",
                                      "",
                                      "--appendonly",
                                      options_.durable ? "yes" : "no",
                                      "--appendfsync",
                                      "always"};
    if (!options_.password.empty()) words.insert(words.end(), {"--requirepass", options_.password});
    process_ = std::make_unique<ChildProcess>(std::move(words));
    while (const auto line = process_->line()) {
      if (line->find("eady to accept connections") != std::string::npos) return;
    }
    why_not_ = "redis-server does not start";
  }
  void kill() { process_->end(SIGKILL); }
  void stop() { ::kill(process_->pid(), SIGSTOP); }
  void go_on() { ::kill(process_->pid(), SIGCONT); }

 private:
  static int free_port() {
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
  std::string credentials() const { return options_.password.empty() ? "" : ":" + options_.password + "@"; }

  const Options options_;
  const TemporaryFolder folder_;
  const int port_;
  std::string why_not_;
  std::unique_ptr<ChildProcess> process_;
};

}  // namespace freshet
