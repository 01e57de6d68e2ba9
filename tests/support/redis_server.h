// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A Redis server of a test's own: on a Unix socket and a loopback port, in a folder of its own, which can be stopped,
/// killed and started again at the same place.

#include <signal.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/support/child_process.h"
#include "tests/support/free_port.h"
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
  void stop() { process_->stop(); }
  void go_on() { process_->go_on(); }

 private:
  std::string credentials() const { return options_.password.empty() ? "" : ":" + options_.password + "@"; }

  const Options options_;
  const TemporaryFolder folder_;
  const int port_;
  std::string why_not_;
  std::unique_ptr<ChildProcess> process_;
};

}  // namespace freshet
