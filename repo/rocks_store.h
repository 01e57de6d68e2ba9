#pragma once

/// The RocksDB database under a repository: how it is opened, how its keys are made, and what its errors mean.
/// repo/FORMAT.md describes what lies in it. Private to this room.

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include "core/result.h"
#include "repo/backend.h"

namespace freshet {

/// A payload's bytes lie in values of this size, the last one shorter.
inline constexpr std::uint64_t kChunkBytes = std::uint64_t{1} << 20;
/// A put of up to this much travels through the log with its heads; a larger one becomes a table file of its own.
inline constexpr std::uint64_t kInlineBytesMax = std::uint64_t{4} << 20;
/// Kept free beside what is about to be written.
inline constexpr std::uint64_t kSpareBytes = std::uint64_t{4} << 20;
/// A table file is closed at this size and another begun.
inline constexpr std::uint64_t kTableBytesMax = std::uint64_t{256} << 20;

/// Any thread.
struct RocksStore {
  static Result<std::unique_ptr<RocksStore>> open(const RocksOptions& options);
  ~RocksStore();

  /// Before something is written through the log: out_of_space when the disk has no room for it and for what is still
  /// to be written out of memory. RocksDB can be brought back after an append that failed; when writing out failed at
  /// the same time, it keeps the broken log, and then every later write fails, or ends the process where it was built
  /// with assertions, as Debian's is. So it does not come to that, unless somebody else fills the disk just then.
  Status check_room(std::uint64_t bytes) const;

  /// Where table files grow before they are taken in.
  std::string new_table_path();

  std::string folder;
  bool read_only = false;
  std::unique_ptr<rocksdb::Env> env;  ///< Of the database; it outlives it.
  std::unique_ptr<rocksdb::DB> db;
  rocksdb::ColumnFamilyHandle* records = nullptr;
  rocksdb::ColumnFamilyHandle* blobs = nullptr;     ///< Heads, and the payloads of small puts.
  rocksdb::ColumnFamilyHandle* payloads = nullptr;  ///< Chunks. Written by taking in table files alone.
  std::atomic<std::uint64_t> tables{0};
  /// Set when the database stopped for an error that no writer was told of: a table that could not be written out.
  std::shared_ptr<std::atomic<bool>> stopped;
};

rocksdb::Options payload_table_options();

std::string head_key(std::string_view blob);
std::string inline_key(std::string_view blob);
/// Sorts by blob, then by chunk, whatever bytes the blob's key has.
std::string chunk_key(std::string_view blob, std::uint32_t chunk);
inline constexpr char kHeadPrefix = 'h';

struct BlobHead {
  std::uint64_t bytes = 0;
  std::uint32_t chunk_bytes = 0;  ///< 0: inline.
};
std::string encode(const BlobHead& head);
Result<BlobHead> decode_blob_head(std::string_view value);

/// All files of the folder; metadata is what is neither a payload in a table file (a dead one too, until it is
/// reclaimed) nor in the log.
Result<DiskUse> disk_use_of(const RocksStore& store);
/// Writes the log out, which then goes, and rewrites the table files of a family in which 0.5 % or more is dead,
/// whoever erased it and when.
Status reclaim_space(RocksStore& store);

/// The Code says what to do next: a full disk is out_of_space, and so on; the message has RocksDB's own words.
Status status_of(const rocksdb::Status& status, std::string_view what);

/// Writes blobs aside and takes them in at commit(); repo/FORMAT.md, "The order of a put".
std::unique_ptr<BlobWriter> make_rocks_blob_writer(RocksStore& store);

}  // namespace freshet
