// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The RocksDB database under a repository: how it is opened, how its keys are made, and what its errors mean.
/// repo/FORMAT.md describes what lies in it. Private to this room.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <vector>

#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include "core/base/mutex.h"
#include "core/base/result.h"
#include "repo/backend/backend.h"
#include "repo/rocks/scan.h"

namespace freshet {

/// A payload's bytes lie in values of this size, the last one shorter.
inline constexpr std::uint64_t kChunkBytes = std::uint64_t{1} << 20;
/// A put of up to this much travels through the log with its heads; a larger one becomes a table file of its own.
inline constexpr std::uint64_t kInlineBytesMax = std::uint64_t{4} << 20;
/// Kept free beside what is about to be written.
inline constexpr std::uint64_t kSpareBytes = std::uint64_t{4} << 20;
/// A file of this size lies in the folder for the day when somebody else fills the disk: opening, retiring and
/// collecting garbage need some room, and without them none would ever be made. A memory table of blobs has as much.
inline constexpr std::uint64_t kReserveBytes = std::uint64_t{8} << 20;
inline constexpr char kReserveName[] = "reserve";
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
  /// Before something is erased: gives the reserve up where the disk has less room than that takes. False when there is
  /// too little all the same.
  bool make_room(std::uint64_t bytes);
  /// The bytes that are in the log alone, and will be written out.
  std::uint64_t bytes_in_memory() const;
  /// Lays the reserve by, where the disk has room for it and for some puts besides.
  void lay_by_reserve();

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
  /// Events in the database's own threads.
  struct Events {
    std::atomic<bool> stopped{false};  ///< A table could not be written out, which no writer was told of.
    std::atomic<bool> damaged{false};  ///< A table could not be compacted, since it is damaged.
    std::atomic<bool> merges{true};    ///< RocksDB compacts tables by itself, as it does until one is damaged.
  };
  std::shared_ptr<Events> events;
  /// Held by those who write or erase blobs, together; alone by who moves those that are there.
  std::shared_mutex blobs_mutex;
  Mutex left_mutex;
  std::vector<std::string> left FRESHET_GUARDED_BY(left_mutex);  ///< Backend::left_by_reclaim().
};

/// How tables are made and read, of each family.
rocksdb::Options payload_table_options();
rocksdb::Options blob_table_options();

bool is_no_space(const rocksdb::Status& status);
/// "the disk of FOLDER is full: 4194304 bytes are needed, 12288 are free (No space left on device)".
Status no_room(const std::string& folder, std::uint64_t needed);

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
/// Drops the table files in which nothing is alive, writes the log out, which then goes, and rewrites the table files
/// of a family in which 0.5 % or more is dead, whoever erased it and when. Damage is no error: what is alive in a
/// damaged file moves to another one, and where that cannot be, the file stays and `store.left` says so.
Status reclaim_space(RocksStore& store);

/// The blobs and bytes by their heads.
struct LiveBlobs {
  struct Blob {
    std::string key;
    std::uint64_t bytes = 0;
    std::uint32_t chunk_bytes = 0;  ///< 0: inline.
  };
  std::vector<Blob> blobs;  ///< Ascending.
  std::uint64_t head_bytes = 0;
  std::uint64_t inlined_bytes = 0;
  std::uint64_t chunked_bytes = 0;
  std::vector<Hole> holes;  ///< In the heads: blobs there may be alive.
};
Result<LiveBlobs> live_blobs(const RocksStore& store);

// Damage, in rocks_damage.cc.

/// The blob that a key of the family belongs to; nothing for a key that no blob has.
std::optional<std::string> blob_of_chunk_key(std::string_view key);
/// Reads every block of every table, and calls back with how many bytes were read, of how many.
Result<std::vector<MediumDamage>> find_damage_in(
    const RocksStore& store, const std::function<void(std::uint64_t done, std::uint64_t total)>& on_read);
/// The table files of the family that have damage, by their numbers.
Result<std::vector<std::uint64_t>> damaged_tables(const RocksStore& store, rocksdb::ColumnFamilyHandle* family);
/// Drops the payload tables in whose ranges no blob is alive. Reads and writes none of them.
Status drop_dead_tables(RocksStore& store);
/// Moves what is alive in damaged tables of blobs or payloads to new ones and drops the damaged ones, or notes why not.
Status salvage(RocksStore& store, rocksdb::ColumnFamilyHandle* family);

/// The Code says what to do next: a full disk is out_of_space, and so on; the message has RocksDB's own words.
Status status_of(const rocksdb::Status& status, std::string_view what);

/// Writes blobs aside and takes them in at commit(); repo/FORMAT.md, "The order of a put".
std::unique_ptr<BlobWriter> make_rocks_blob_writer(RocksStore& store);

}  // namespace freshet
