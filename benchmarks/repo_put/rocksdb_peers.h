// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The other ways to bring a large payload into RocksDB, each durable when it returns.

#include <memory>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/model/tensor.h"

namespace freshet::benchmarks {

class RocksPeer {
 public:
  enum class Way {
    log,               ///< Through the log and the memory tables, synced: what a plain Put does.
    no_log,            ///< Through the memory tables alone, then an explicit flush.
    no_log_blob_files  ///< The same with payloads kept out of the tree, in RocksDB's blob files.
  };
  static Result<std::unique_ptr<RocksPeer>> open(const std::string& folder, Way way);
  virtual ~RocksPeer() = default;
  virtual Status put(const std::string& key, const std::vector<Bytes>& payloads) = 0;
};

}  // namespace freshet::benchmarks
