// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Redis-Queries, the peer of the EvoStore paper (section 5.2): architectures are values in Redis, and who looks for
/// the best ancestor reads them all and keeps the best. A reader-writer lock in Redis guards what is published, and the
/// best ancestor is held by a count of references until its tensors have been transferred.
///
/// Where the paper leaves a choice, the faster one was taken: a Unix socket; many values in each request, the next
/// request on its way while one is worked on; layers are compared by their slot ids, so that the longest common prefix
/// takes one look-up per layer.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/common/child.h"
#include "core/base/result.h"
#include "repo/match/graph.h"

namespace freshet::benchmarks {

/// A redis-server of our own on a Unix socket, that keeps nothing on disk.
class RedisServer {
 public:
  /// unavailable when there is no redis-server or it does not answer; unsupported without hiredis.
  static Result<std::unique_ptr<RedisServer>> start();
  ~RedisServer();
  RedisServer(const RedisServer&) = delete;
  RedisServer& operator=(const RedisServer&) = delete;
  const std::string& socket() const { return socket_; }

 private:
  RedisServer() = default;
  std::string folder_;
  std::string socket_;
  std::unique_ptr<Child> child_;
};

/// One client. One thread at a time.
class RedisQueries {
 public:
  /// How a graph is written: as the paper has it, or packed, which takes a tenth of the time to read.
  enum class Form { json, packed };

  static Result<std::unique_ptr<RedisQueries>> connect(const RedisServer& server, Form form);
  virtual ~RedisQueries() = default;

  struct Model {
    std::string name;
    std::shared_ptr<const MatchGraph> graph;
    double quality = 0;
  };
  /// Publishes models: the writer's lock, their graphs, their names in the list, one reference each.
  virtual Status publish(const std::vector<Model>& models) = 0;

  struct Best {
    std::string name;
    std::uint64_t layers = 0;  ///< Of the longest common prefix.
    double quality = 0;
  };
  /// The longest common prefix, then the higher quality; it is held by one more reference. Nothing when no layer is
  /// shared.
  virtual Result<std::optional<Best>> query(const MatchGraph& graph) = 0;

  /// Gives one reference back. True when it was the last one: the model is out of the list, and its file can go.
  virtual Result<bool> release(const std::string& name) = 0;

  /// What Redis says it uses for all of it, in bytes.
  virtual Result<std::uint64_t> memory() = 0;
};

}  // namespace freshet::benchmarks
