// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What people keep a lineage in instead: a table in SQLite, asked with recursive queries, and a folder of JSON files,
/// one for each version, as experiment trackers do. Both have the row that Freshet answers with.

#include <cstdint>
#include <memory>
#include <string>

#include "benchmarks/provenance/family.h"
#include "core/base/result.h"

namespace freshet::benchmarks {

/// One thread at a time.
class LineagePeer {
 public:
  virtual ~LineagePeer() = default;
  virtual Result<std::uint64_t> mrca(std::uint64_t a, std::uint64_t b) = 0;
  /// How many versions the lineage has, all of whose rows were read.
  virtual Result<std::uint64_t> lineage(std::uint64_t of) = 0;
};

/// unsupported where this was built without it.
Result<std::unique_ptr<LineagePeer>> open_sqlite_peer(const std::string& folder, const Family& family);
Result<std::unique_ptr<LineagePeer>> open_json_peer(const std::string& folder, const Family& family);

}  // namespace freshet::benchmarks
