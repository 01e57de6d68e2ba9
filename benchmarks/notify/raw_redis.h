// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Redis as a peer: a small message with PUBLISH to a subscriber in another process, over a Unix socket.

#include <memory>
#include <string>

#include "benchmarks/common/child.h"
#include "benchmarks/stream/pair.h"

namespace freshet::benchmarks {

/// A redis-server of our own on a Unix socket, that keeps nothing on disk. One thread at a time.
class RedisServer {
 public:
  /// unavailable when there is no redis-server or it does not answer.
  static Result<std::unique_ptr<RedisServer>> start();
  ~RedisServer();
  const std::string& socket() const { return socket_; }
  /// As a directory is named.
  std::string url() const { return "redis+unix://" + socket_; }

 private:
  std::unique_ptr<ScratchFolder> folder_;
  std::string socket_;
  std::unique_ptr<Child> child_;
};

/// One thread at a time.
class RawRedis {
 public:
  static Result<std::unique_ptr<RawRedis>> start(const RedisServer& server);
  /// Microseconds from PUBLISH until the other process has the message.
  Result<double> notify();

 private:
  std::unique_ptr<Child> sender_;
  std::unique_ptr<Child> receiver_;
};

int run_raw_redis_sender(const std::vector<std::string>& arguments);
int run_raw_redis_receiver(const std::vector<std::string>& arguments);

}  // namespace freshet::benchmarks
