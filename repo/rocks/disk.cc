// SPDX-License-Identifier: Apache-2.0
/// What a RocksDB repository takes on the disk, and how much of that is not payload.

#include <chrono>
#include <filesystem>
#include <thread>
#include <unordered_set>

#include "core/base/format.h"
#include "repo/rocks/head_bytes.h"
#include "repo/rocks/store.h"

namespace freshet {
namespace {

namespace fs = std::filesystem;

/// Rewriting moves what is live too, so it waits until one byte in so many is dead.
constexpr std::uint64_t kDeadShareInverse = 200;
/// How long tables that RocksDB is merging by itself are waited for, and how often it is asked.
constexpr auto kMergeWaitMax = std::chrono::seconds(60);
constexpr auto kMergeLookAgain = std::chrono::milliseconds(5);

struct FolderBytes {
  std::uint64_t all = 0;
  std::uint64_t unlisted = 0;  ///< Tables that are not the database's yet, or not any more.
};

Result<FolderBytes> folder_bytes(const RocksStore& store) {
  const std::string& folder = store.folder;
  std::vector<rocksdb::LiveFileMetaData> live;
  store.db->GetLiveFilesMetaData(&live);
  std::unordered_set<std::string> listed;
  for (const auto& table : live) listed.insert(table.relative_filename);
  std::error_code error;
  FolderBytes bytes;
  for (fs::recursive_directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    std::error_code gone;  // A file may go while the folder is read.
    if (at->path().filename() == kReserveName) continue;
    const std::uint64_t size = at->is_regular_file(gone) ? at->file_size(gone) : 0;
    if (gone) continue;
    bytes.all += size;
    if (at->path().extension() == ".sst" && !listed.contains(at->path().filename())) bytes.unlisted += size;
  }
  if (error) return fail_errno(error.value(), "read the folder " + folder);
  return bytes;
}

// Values in table files, dead ones too. Nothing is compressed, so they take what they are long.
Result<std::uint64_t> value_bytes(rocksdb::DB& db, rocksdb::ColumnFamilyHandle* family) {
  rocksdb::TablePropertiesCollection tables;
  const rocksdb::Status read = db.GetPropertiesOfAllTables(family, &tables);
  if (read.IsCorruption()) {  // Then the files' sizes must do, as the database itself remembers them.
    rocksdb::ColumnFamilyMetaData files;
    db.GetColumnFamilyMetaData(family, &files);
    return files.size;
  }
  FRESHET_TRY(status_of(read, "read the tables' properties"));
  std::uint64_t bytes = 0;
  for (const auto& [path, table] : tables) bytes += table->raw_value_size;
  return bytes;
}

// Values of heads in table files, which are no payload. Where a table does not say, the live ones are counted.
Result<std::uint64_t> head_bytes(const RocksStore& store) {
  rocksdb::TablePropertiesCollection tables;
  const bool is_read = store.db->GetPropertiesOfAllTables(store.blobs, &tables).ok();
  std::uint64_t bytes = 0;
  bool all_say = is_read;
  for (const auto& [path, table] : tables) {
    const std::optional<std::uint64_t> noted = noted_head_bytes(*table);
    all_say = all_say && noted;
    bytes += noted.value_or(0);
  }
  if (all_say) return bytes;
  FRESHET_ASSIGN(const LiveBlobs live, live_blobs(store));
  return live.head_bytes;
}

Result<std::uint64_t> log_bytes(rocksdb::DB& db) {
  rocksdb::VectorLogPtr logs;
  FRESHET_TRY(status_of(db.GetSortedWalFiles(logs), "list the log's files"));
  std::uint64_t bytes = 0;
  for (const auto& log : logs) bytes += log->SizeFileBytes();
  return bytes;
}

// What is dead and cannot be read goes with its table, which a compaction cannot do.
Status rewrite_if_more_than(RocksStore& store, rocksdb::ColumnFamilyHandle* family, std::uint64_t live) {
  for (const bool salvaged : {false, true}) {
    FRESHET_ASSIGN(const std::uint64_t bytes, value_bytes(*store.db, family));
    if (bytes <= live + live / kDeadShareInverse) return {};
    const rocksdb::Status done = store.db->CompactRange({}, family, nullptr, nullptr);
    if (is_no_space(done)) {
      const MutexLock lock(store.left_mutex);
      store.left.push_back(
          format("{} dead bytes stay: the disk has no room to move the live bytes beside them", bytes - live));
      return status_of(store.db->Resume(), "go on after a full disk");
    }
    if (!done.IsCorruption()) return status_of(done, "reclaim space");
    if (!salvaged) FRESHET_TRY(salvage(store, family));
  }
  return {};  // What stayed was noted.
}

// A merge has both what it reads and what it writes on the disk.
void wait_for_merges(const RocksStore& store) {
  const auto deadline = std::chrono::steady_clock::now() + kMergeWaitMax;
  const auto is_busy = [&] {
    std::uint64_t running = 0;
    std::uint64_t pending = 0;
    for (rocksdb::ColumnFamilyHandle* family : {store.records, store.blobs, store.payloads}) {
      std::uint64_t one = 0;
      store.db->GetIntProperty(family, rocksdb::DB::Properties::kNumRunningCompactions, &running);
      if (store.db->GetIntProperty(family, rocksdb::DB::Properties::kCompactionPending, &one)) pending += one;
    }
    return running + pending != 0;
  };
  while (store.events->merges && !store.events->damaged && is_busy() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(kMergeLookAgain);
  }
}

}  // namespace

Result<LiveBlobs> live_blobs(const RocksStore& store) {
  rocksdb::ReadOptions options;
  options.fill_cache = false;
  const std::unique_ptr<rocksdb::Iterator> at(store.db->NewIterator(options, store.blobs));
  LiveBlobs live;
  const auto add = [&](std::string_view key, std::string_view value) {
    const Result<BlobHead> head = decode_blob_head(value);
    if (!head) {
      const std::string damaged(key);
      live.holes.push_back({.after = damaged, .before = damaged, .reason = head.error().message()});
      return true;
    }
    live.head_bytes += value.size();
    (head->chunk_bytes == 0 ? live.inlined_bytes : live.chunked_bytes) += head->bytes;
    live.blobs.push_back({.key = std::string(key.substr(1)), .bytes = head->bytes, .chunk_bytes = head->chunk_bytes});
    return true;
  };
  FRESHET_TRY(scan_readable(*at, std::string(1, kHeadPrefix), add, live.holes));
  return live;
}

Result<DiskUse> disk_use_of(const RocksStore& store) {
  DiskUse use;
  FRESHET_ASSIGN(const FolderBytes folder, folder_bytes(store));
  use.bytes = folder.all;
  std::uint64_t payload = 0;
  for (rocksdb::ColumnFamilyHandle* family : {store.blobs, store.payloads}) {
    FRESHET_ASSIGN(const std::uint64_t values, value_bytes(*store.db, family));
    payload += values;
  }
  FRESHET_ASSIGN(const std::uint64_t heads, head_bytes(store));
  payload -= std::min(payload, heads);
  // What the log holds is small payloads and records alike, until it is written out: it counts as payload.
  FRESHET_ASSIGN(const std::uint64_t log, log_bytes(*store.db));
  use.metadata_bytes = use.bytes - std::min(use.bytes, payload + log + folder.unlisted);
  return use;
}

Status reclaim_space(RocksStore& store) {
  {
    const MutexLock lock(store.left_mutex);
    store.left.clear();
  }
  // What makes room comes before what needs some.
  FRESHET_TRY(status_of(store.db->SyncWAL(), "sync the log"));
  FRESHET_TRY(drop_dead_tables(store));
  if (!store.make_room(store.bytes_in_memory())) {
    const MutexLock lock(store.left_mutex);
    store.left.push_back(no_room(store.folder, store.bytes_in_memory()).error().message());
    return {};
  }
  FRESHET_TRY(status_of(store.db->Flush({}, {store.records, store.blobs, store.payloads}), "write the log out"));
  FRESHET_ASSIGN(const LiveBlobs live, live_blobs(store));
  FRESHET_TRY(rewrite_if_more_than(store, store.payloads, live.chunked_bytes));
  FRESHET_TRY(rewrite_if_more_than(store, store.blobs, live.head_bytes + live.inlined_bytes));
  wait_for_merges(store);
  store.lay_by_reserve();
  return {};
}

}  // namespace freshet
