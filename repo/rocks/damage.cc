// SPDX-License-Identifier: Apache-2.0
/// Damaged tables: where they are, and how what is alive gets out of them.
///
/// A compaction reads every block of the tables that it merges and fails with the first one that is damaged, so the
/// dead bytes of such a table, the damaged ones among them, would stay for ever. But what is alive is known: the heads
/// tell it. So that is read, value by value, written into a new table, and the damaged one is dropped, for which it
/// need not be read. Where something that is alive cannot be read, the table stays as it is: there may be other ways to
/// it.

#include <algorithm>
#include <filesystem>
#include <map>

#include <rocksdb/sst_file_reader.h>
#include <rocksdb/sst_file_writer.h>
#include "core/base/format.h"
#include "repo/rocks/store.h"

namespace freshet {
namespace {

constexpr std::size_t kReadAheadBytes = std::size_t{1} << 20;

rocksdb::Options options_for(const RocksStore& store, const rocksdb::ColumnFamilyHandle* family) {
  rocksdb::Options options = family == store.payloads ? payload_table_options() : blob_table_options();
  options.env = store.env.get();
  return options;
}

struct Table : rocksdb::SstFileMetaData {
  Table(const rocksdb::SstFileMetaData& file, int its_level) : SstFileMetaData(file), level(its_level) {}
  int level;
};

// The lowest level first, and within the topmost one the oldest: in this order they may be dropped.
std::vector<Table> tables_of(const RocksStore& store, rocksdb::ColumnFamilyHandle* family) {
  rocksdb::ColumnFamilyMetaData all;
  store.db->GetColumnFamilyMetaData(family, &all);
  std::vector<Table> tables;
  for (const auto& level : all.levels) {
    for (const auto& file : level.files) tables.emplace_back(file, level.level);
  }
  std::sort(tables.begin(), tables.end(), [](const Table& a, const Table& b) {
    return a.level != b.level ? a.level > b.level : a.largest_seqno < b.largest_seqno;
  });
  return tables;
}

/// What is damaged in one table: nothing when it is whole, or gone by now.
rocksdb::Status check_table(const RocksStore& store, const rocksdb::ColumnFamilyHandle* family, const Table& table,
                            std::vector<Hole>* holes) {
  rocksdb::SstFileReader reader(options_for(store, family));
  rocksdb::Status status = reader.Open(table.directory + "/" + table.relative_filename);
  rocksdb::ReadOptions options;
  options.readahead_size = kReadAheadBytes;
  options.fill_cache = false;
  const bool opened = status.ok();
  if (opened) status = reader.VerifyChecksum(options);
  if (status.IsPathNotFound() || status.IsNotFound()) return rocksdb::Status::OK();
  if (!status.IsCorruption() || holes == nullptr || !opened) return status;
  const std::unique_ptr<rocksdb::Iterator> at(reader.NewIterator(options));
  if (at != nullptr) {
    static_cast<void>(scan_readable(
        *at, "", [](std::string_view, std::string_view) { return true; }, *holes));
  }
  return status;
}

/// A part of a table, its bounds left out where they are known.
struct Part {
  const Hole& hole;
  const Table& table;

  bool has(const std::string& key) const {
    if (hole.after.empty() ? key < table.smallestkey : key <= hole.after) return false;
    return hole.before.empty() ? key <= table.largestkey : key < hole.before;
  }
};

std::vector<std::string> blobs_in(const RocksStore& store, const rocksdb::ColumnFamilyHandle* family,
                                  const LiveBlobs& live, const Part& part) {
  const auto has = [&](const LiveBlobs::Blob& blob) {
    if (family == store.blobs) return part.has(head_key(blob.key)) || part.has(inline_key(blob.key));
    for (std::uint64_t at = 0; blob.chunk_bytes != 0 && at < blob.bytes; at += blob.chunk_bytes) {
      if (part.has(chunk_key(blob.key, static_cast<std::uint32_t>(at / blob.chunk_bytes)))) return true;
    }
    return false;
  };
  std::vector<std::string> keys;
  for (const LiveBlobs::Blob& blob : live.blobs) {
    if (has(blob)) keys.push_back(blob.key);
  }
  return keys;
}

/// The keys of the family that are alive, by the heads, with the sizes of their values.
std::map<std::string, std::uint64_t> live_values(const RocksStore& store, const rocksdb::ColumnFamilyHandle* family,
                                                 const LiveBlobs& live) {
  std::map<std::string, std::uint64_t> values;
  for (const LiveBlobs::Blob& blob : live.blobs) {
    if (family == store.blobs) {
      values.emplace(head_key(blob.key), encode(BlobHead{.bytes = blob.bytes, .chunk_bytes = blob.chunk_bytes}).size());
      if (blob.chunk_bytes == 0) values.emplace(inline_key(blob.key), blob.bytes);
      continue;
    }
    if (blob.chunk_bytes == 0) continue;
    for (std::uint64_t at = 0; at < blob.bytes; at += blob.chunk_bytes) {
      values.emplace(chunk_key(blob.key, static_cast<std::uint32_t>(at / blob.chunk_bytes)),
                     std::min<std::uint64_t>(blob.chunk_bytes, blob.bytes - at));
    }
  }
  return values;
}

/// Moves values out of some tables. One thread at a time, which holds the blobs alone.
class Salvage {
 public:
  Salvage(RocksStore& store, rocksdb::ColumnFamilyHandle* family) : store_(store), family_(family) {}
  ~Salvage() {
    std::error_code ignored;
    for (const std::string& path : paths_) std::filesystem::remove(path, ignored);
  }
  Salvage(const Salvage&) = delete;
  Salvage& operator=(const Salvage&) = delete;

  /// corrupt when the value cannot be read: then nothing is to be dropped.
  Status copy(const std::string& key, std::uint64_t bytes) {
    rocksdb::ReadOptions options;
    options.verify_checksums = false;  // Flipped bytes of a payload are found by its digest. Here they are kept.
    options.fill_cache = false;
    rocksdb::PinnableSlice value;
    const rocksdb::Status read = store_.db->Get(options, family_, key, &value);
    if (read.IsNotFound()) return fail(Code::corrupt, "a part of the blob is missing");
    FRESHET_TRY(status_of(read, "read it"));
    if (value.size() != bytes) return fail(Code::corrupt, "a part of the blob is cut short");
    if (writer_ == nullptr) FRESHET_TRY(begin_table());
    FRESHET_TRY(status_of(writer_->Put(key, value), "write a table"));
    return writer_->FileSize() < kTableBytesMax ? Status() : finish_table();
  }

  /// What was copied is the newest of its keys, durably.
  Status take_in() {
    if (writer_ != nullptr) FRESHET_TRY(finish_table());
    if (paths_.empty()) return {};
    rocksdb::IngestExternalFileOptions options;
    options.move_files = true;
    options.write_global_seqno = false;
    return status_of(store_.db->IngestExternalFile(family_, paths_, options), "take in a table");
  }

 private:
  Status begin_table() {
    const rocksdb::Options options = options_for(store_, family_);
    writer_ = std::make_unique<rocksdb::SstFileWriter>(rocksdb::EnvOptions(options), options, family_);
    paths_.push_back(store_.new_table_path());
    return status_of(writer_->Open(paths_.back()), "begin a table");
  }
  Status finish_table() {
    const rocksdb::Status done = writer_->Finish();
    writer_.reset();
    return status_of(done, "write a table");
  }

  RocksStore& store_;
  rocksdb::ColumnFamilyHandle* const family_;
  std::unique_ptr<rocksdb::SstFileWriter> writer_;
  std::vector<std::string> paths_;
};

void note(RocksStore& store, std::string text) {
  const MutexLock lock(store.left_mutex);
  if (std::find(store.left.begin(), store.left.end(), text) == store.left.end()) store.left.push_back(std::move(text));
}

std::string label(const Table& table) { return "table " + table.relative_filename; }

bool may_lie_in(const std::vector<Hole>& holes, const Table& table) {
  const auto first = blob_of_chunk_key(table.smallestkey);
  const auto last = blob_of_chunk_key(table.largestkey);
  if (!first || !last) return true;
  return std::any_of(holes.begin(), holes.end(), [&](const Hole& hole) {
    return (hole.before.empty() || *first <= hole.before.substr(1)) && *last >= hole.after.substr(1);
  });
}

// Copies what is alive within the tables' ranges and drops them, in their order.
Status replace(RocksStore& store, rocksdb::ColumnFamilyHandle* family, const std::vector<Table>& tables,
               const std::map<std::string, std::uint64_t>& live) {
  Salvage salvage(store, family);
  for (const auto& [key, bytes] : live) {
    const bool concerned = std::any_of(tables.begin(), tables.end(), [&key = key](const auto& table) {
      return table.smallestkey <= key && key <= table.largestkey;
    });
    if (concerned) FRESHET_TRY(salvage.copy(key, bytes));
  }
  FRESHET_TRY(salvage.take_in());
  for (const auto& table : tables) {
    FRESHET_TRY(status_of(store.db->DeleteFile(table.relative_filename), "drop " + label(table)));
  }
  return {};
}

}  // namespace

Result<std::vector<std::uint64_t>> damaged_tables(const RocksStore& store, rocksdb::ColumnFamilyHandle* family) {
  std::vector<std::uint64_t> damaged;
  for (const auto& table : tables_of(store, family)) {
    const rocksdb::Status status = check_table(store, family, table, nullptr);
    if (status.IsCorruption()) damaged.push_back(table.file_number);
    if (!status.ok() && !status.IsCorruption()) return fail(status_of(status, "read " + label(table)).error());
  }
  return damaged;
}

Result<std::vector<MediumDamage>> find_damage_in(
    const RocksStore& store, const std::function<void(std::uint64_t done, std::uint64_t total)>& on_read) {
  FRESHET_ASSIGN(const LiveBlobs live, live_blobs(store));
  std::vector<MediumDamage> found;
  std::uint64_t done = 0;
  std::uint64_t total = 0;
  for (rocksdb::ColumnFamilyHandle* family : {store.records, store.blobs, store.payloads}) {
    for (const Table& table : tables_of(store, family)) total += table.size;
  }
  for (rocksdb::ColumnFamilyHandle* family : {store.records, store.blobs, store.payloads}) {
    for (const auto& table : tables_of(store, family)) {
      std::vector<Hole> holes;
      const rocksdb::Status status = check_table(store, family, table, &holes);
      done += table.size;
      if (on_read) on_read(done, std::max(done, total));
      if (status.ok()) continue;
      if (!status.IsCorruption()) return fail(status_of(status, "read " + label(table)).error());
      // Not in its values, or all of them: what the table says of itself is damaged.
      if (holes.empty()) holes.emplace_back();
      for (const Hole& hole : holes) {
        MediumDamage& one = found.emplace_back();
        one.where = label(table);
        one.reason = hole.reason.empty() ? status.ToString() : hole.reason;
        one.in_records = family == store.records;
        if (!one.in_records) one.blobs = blobs_in(store, family, live, {.hole = hole, .table = table});
      }
    }
  }
  return found;
}

// Tables before heads: a table's heads are written before it is taken in, so what is alive in these has its heads by
// then.
Status drop_dead_tables(RocksStore& store) {
  const std::vector<Table> tables = tables_of(store, store.payloads);
  if (tables.empty()) return {};
  FRESHET_ASSIGN(const LiveBlobs live, live_blobs(store));
  for (const auto& table : tables) {
    const auto first = blob_of_chunk_key(table.smallestkey);
    const auto last = blob_of_chunk_key(table.largestkey);
    if (!first || !last || may_lie_in(live.holes, table)) continue;
    const auto next =
        std::lower_bound(live.blobs.begin(), live.blobs.end(), *first,
                         [](const LiveBlobs::Blob& blob, const std::string& key) { return blob.key < key; });
    if (next != live.blobs.end() && next->key <= *last) continue;
    const rocksdb::Status dropped = store.db->DeleteFile(table.relative_filename);
    // One that lies above others may hide what they have; a compaction sorts that out.
    if (!dropped.ok() && !dropped.IsInvalidArgument()) return status_of(dropped, "drop " + label(table));
  }
  return {};
}

Status salvage(RocksStore& store, rocksdb::ColumnFamilyHandle* family) {
  const std::unique_lock<std::shared_mutex> alone(store.blobs_mutex);
  FRESHET_TRY(status_of(store.db->Flush({}, family), "write the log out"));
  FRESHET_ASSIGN(const std::vector<std::uint64_t> damaged, damaged_tables(store, family));
  if (damaged.empty()) return {};
  const std::vector<Table> tables = tables_of(store, family);
  const auto is_damaged = [&](const Table& table) {
    return std::find(damaged.begin(), damaged.end(), table.file_number) != damaged.end();
  };
  FRESHET_ASSIGN(const LiveBlobs live, live_blobs(store));
  const std::map<std::string, std::uint64_t> values = live_values(store, family, live);
  const auto give_up = [&](const Table& table, const std::string& why) {
    note(store, format("{} is damaged and stays, with the dead bytes in it: {}", label(table), why));
  };
  if (!live.holes.empty()) {
    for (const auto& table : tables) {
      if (is_damaged(table)) give_up(table, "its live bytes cannot be listed: " + live.holes.front().reason);
    }
    return {};
  }
  std::vector<std::vector<Table>> together;
  if (const int bottom = tables.front().level;
      bottom != 0 && std::all_of(tables.begin(), tables.end(),
                                 [&](const Table& table) { return table.level == bottom || !is_damaged(table); })) {
    for (const Table& table : tables) {
      if (is_damaged(table)) together.push_back({table});
    }
  } else {
    // Elsewhere a table may be dropped only when nothing lies below it.
    const auto end = std::find_if(tables.rbegin(), tables.rend(), is_damaged).base();
    together.emplace_back(tables.begin(), end);
  }
  for (const std::vector<Table>& some : together) {
    const Status replaced = replace(store, family, some, values);
    if (replaced) continue;
    const Code code = replaced.error().code();
    if (code != Code::corrupt && code != Code::invalid_argument && code != Code::out_of_space) return replaced;
    for (const Table& table : some) {
      if (is_damaged(table)) give_up(table, replaced.error().message());
    }
  }
  return {};
}

}  // namespace freshet
