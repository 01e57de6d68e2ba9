#pragma once

/// Where a repository's bytes rest: blobs (tensor payloads; large, immutable, written in chunks) and records (small; changed
/// in atomic batches). One interface, one conformance suite (tests/conformance/backend_conformance.h) that every backend runs.
/// The memory backend (repo/memory_backend.cc) is the tutorial.
///
/// Any thread. Blobs are durable when sync_blobs() returned; a batch is atomic, and durable when apply() returned. After a
/// failed sync or apply, every later write answers the same error until the backend is opened anew: bytes that may be lost
/// are never reported as kept.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/result.h"
#include "core/tensor.h"

namespace freshet {

class Backend {
 public:
  struct Put {
    std::string key;
    std::string value;
  };
  struct Erase {
    std::string key;
  };
  using Batch = std::vector<std::variant<Put, Erase>>;

  virtual ~Backend() = default;

  /// "memory", "rocksdb".
  virtual std::string_view kind() const = 0;
  /// True when what apply() acknowledged survives the process and the host.
  virtual bool durable() const = 0;

  /// Writes a whole blob; replaces one that an earlier, unfinished put left. Not visible to others until a batch names it
  /// (by the repository's own records), not durable before sync_blobs().
  virtual Status write_blob(std::string_view key, Bytes bytes) = 0;
  virtual Status sync_blobs() = 0;
  /// Reads out.size() bytes from `offset`. not_found, or corrupt when the blob is shorter.
  virtual Status read_blob(std::string_view key, std::uint64_t offset, MutableBytes out) const = 0;
  virtual Status erase_blob(std::string_view key) = 0;
  /// Calls back for every blob key with its size, in key order, until false.
  virtual Status list_blobs(const std::function<bool(std::string_view key, std::uint64_t bytes)>& each) const = 0;

  virtual Status apply(const Batch& batch) = 0;
  virtual Result<std::string> get(std::string_view key) const = 0;
  /// Records whose key starts with `prefix`, in key order, until the callback says false.
  virtual Status scan(std::string_view prefix,
                      const std::function<bool(std::string_view key, std::string_view value)>& each) const = 0;

  /// Bytes on the medium, as it accounts for them.
  virtual Result<std::uint64_t> disk_bytes() const = 0;
};

std::unique_ptr<Backend> make_memory_backend();

struct RocksOptions {
  std::string folder;
  bool create = true;
  /// Opens beside the process that owns the folder: what was durable by now, unchanging. Writes answer failed_precondition.
  bool read_only = false;
};
/// unavailable when another process owns the folder (and read_only was not asked), not_found when it holds no repository
/// and `create` is false.
Result<std::unique_ptr<Backend>> open_rocks_backend(RocksOptions options);

}  // namespace freshet
