/// What a RocksDB repository takes on the disk, and how much of that is not payload.

#include <filesystem>

#include "core/format.h"
#include "repo/rocks_store.h"

namespace freshet {
namespace {

namespace fs = std::filesystem;

/// Rewriting moves what is live too, so it waits until one byte in so many is dead.
constexpr std::uint64_t kDeadShareInverse = 200;

Result<std::uint64_t> folder_bytes(const std::string& folder) {
  std::error_code error;
  std::uint64_t bytes = 0;
  for (fs::recursive_directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    std::error_code gone;  // A file may go while the folder is read.
    const std::uint64_t size = at->is_regular_file(gone) ? at->file_size(gone) : 0;
    if (!gone) bytes += size;
  }
  if (error) return fail_errno(error.value(), "read the folder " + folder);
  return bytes;
}

// Values in table files, dead ones too. Nothing is compressed, so they take what they are long.
Result<std::uint64_t> value_bytes(rocksdb::DB& db, rocksdb::ColumnFamilyHandle* family) {
  rocksdb::TablePropertiesCollection tables;
  FRESHET_TRY(status_of(db.GetPropertiesOfAllTables(family, &tables), "read the tables' properties"));
  std::uint64_t bytes = 0;
  for (const auto& [path, table] : tables) bytes += table->raw_value_size;
  return bytes;
}

Result<std::uint64_t> log_bytes(rocksdb::DB& db) {
  rocksdb::VectorLogPtr logs;
  FRESHET_TRY(status_of(db.GetSortedWalFiles(logs), "list the log's files"));
  std::uint64_t bytes = 0;
  for (const auto& log : logs) bytes += log->SizeFileBytes();
  return bytes;
}

/// What the heads say that there is.
struct LiveBytes {
  std::uint64_t heads = 0;
  std::uint64_t inlined = 0;
  std::uint64_t chunked = 0;
};

Result<LiveBytes> live_bytes(const RocksStore& store) {
  rocksdb::ReadOptions options;
  options.fill_cache = false;
  const std::unique_ptr<rocksdb::Iterator> at(store.db->NewIterator(options, store.blobs));
  const std::string prefix(1, kHeadPrefix);
  LiveBytes live;
  for (at->Seek(prefix); at->Valid() && at->key().starts_with(prefix); at->Next()) {
    FRESHET_ASSIGN(const BlobHead head, decode_blob_head(at->value().ToStringView()));
    live.heads += at->value().size();
    (head.chunk_bytes == 0 ? live.inlined : live.chunked) += head.bytes;
  }
  FRESHET_TRY(status_of(at->status(), "list blobs"));
  return live;
}

Status rewrite_if_more_than(const RocksStore& store, rocksdb::ColumnFamilyHandle* family, std::uint64_t live) {
  FRESHET_ASSIGN(const std::uint64_t bytes, value_bytes(*store.db, family));
  if (bytes <= live + live / kDeadShareInverse) return {};
  return status_of(store.db->CompactRange({}, family, nullptr, nullptr), "reclaim space");
}

}  // namespace

Result<DiskUse> disk_use_of(const RocksStore& store) {
  DiskUse use;
  FRESHET_ASSIGN(use.bytes, folder_bytes(store.folder));
  std::uint64_t payload = 0;
  for (rocksdb::ColumnFamilyHandle* family : {store.blobs, store.payloads}) {
    FRESHET_ASSIGN(const std::uint64_t values, value_bytes(*store.db, family));
    payload += values;
  }
  FRESHET_ASSIGN(const LiveBytes live, live_bytes(store));
  payload -= std::min(payload, live.heads);
  // What the log holds is small payloads and records alike, until it is written out: it counts as payload.
  FRESHET_ASSIGN(const std::uint64_t log, log_bytes(*store.db));
  use.metadata_bytes = use.bytes - std::min(use.bytes, payload + log);
  return use;
}

Status reclaim_space(RocksStore& store) {
  FRESHET_TRY(status_of(store.db->Flush({}, {store.records, store.blobs, store.payloads}), "write the log out"));
  FRESHET_ASSIGN(const LiveBytes live, live_bytes(store));
  FRESHET_TRY(rewrite_if_more_than(store, store.payloads, live.chunked));
  return rewrite_if_more_than(store, store.blobs, live.heads + live.inlined);
}

}  // namespace freshet
