// SPDX-License-Identifier: Apache-2.0
#pragma once

/// How a repository's records grow with a long lineage of which each version changes little.

#include <cstdint>
#include <string>

#include "core/base/result.h"

namespace freshet::benchmarks {

struct MetadataCase {
  std::uint64_t versions = 10'000;
  std::uint32_t tensors = 500;
  std::uint32_t changed = 25;  ///< Of each version but the first; others than those of the version before.
};

struct MetadataSize {
  /// What the changes need: the name, size and digest of each segment that was written, and 128 bytes a version for its
  /// own identity, ancestor, quality and digests.
  std::uint64_t needed_bytes = 0;
  std::uint64_t record_bytes = 0;    ///< Keys and values of all records, as the backend is handed them.
  std::uint64_t disk_bytes = 0;      ///< What the folder takes, without the tensors' own bytes.
  double put_ms = 0;                 ///< The median of all puts.
  double contributors_first_us = 0;  ///< Medians of contributors() of the first and of the newest version.
  double contributors_newest_us = 0;
  std::uint64_t contributors = 0;  ///< Of the newest.
};

/// In a new RocksDB repository in the folder.
Result<MetadataSize> measure_metadata(const std::string& folder, const MetadataCase& wanted);

}  // namespace freshet::benchmarks
