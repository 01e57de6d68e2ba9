// SPDX-License-Identifier: Apache-2.0
#include "repo/rocks/store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstring>
#include <filesystem>
#include <vector>

#include <rocksdb/cache.h>
#include <rocksdb/convenience.h>
#include <rocksdb/env.h>
#include <rocksdb/listener.h>
#include <rocksdb/table.h>
#include "core/base/format.h"
#include "repo/records/records.h"
#include "repo/rocks/blocks.h"
#include "repo/rocks/chunk_memory.h"
#include "repo/rocks/head_bytes.h"
#include "repo/rocks/table_files.h"

namespace freshet {
namespace {

namespace fs = std::filesystem;

constexpr int kReadOnlyOpensMax = 3;
/// What is left in the log when a repository is closed. Memory tables that are nearly empty take as much.
constexpr std::uint64_t kLogBytesLeftMax = std::uint64_t{2} << 20;
constexpr char kIncoming[] = "incoming";

// After a full disk RocksDB would look for room every few seconds and be busy meanwhile. Whoever writes next knows
// better when to try: recover() does.
//
// A damaged table cannot be compacted. For RocksDB that is reason enough to take no writes until it is opened again,
// and then to fail the same way. But nothing is lost by leaving the tables as they are, and much by not being able to
// retire what is damaged: so that error is none, and whoever writes next has no more such compactions begun.
class RocksListener final : public rocksdb::EventListener {
 public:
  explicit RocksListener(std::shared_ptr<RocksStore::Events> events) : events_(std::move(events)) {}
  void OnBackgroundError(rocksdb::BackgroundErrorReason reason, rocksdb::Status* error) override {
    if (reason == rocksdb::BackgroundErrorReason::kCompaction && error->IsCorruption()) {
      events_->damaged = true;
      *error = rocksdb::Status::OK();
      return;
    }
    // Who writes is told of its own errors, and brings the database back itself.
    const bool in_background =
        reason == rocksdb::BackgroundErrorReason::kFlush || reason == rocksdb::BackgroundErrorReason::kCompaction;
    if (in_background) events_->stopped = true;
  }
  void OnErrorRecoveryBegin(rocksdb::BackgroundErrorReason, rocksdb::Status, bool* auto_recovery) override {
    *auto_recovery = false;
  }

 private:
  const std::shared_ptr<RocksStore::Events> events_;
};

// RocksDB's diary. Its own one, a file beside the data, ends the process on a full disk where RocksDB was built with
// assertions, as Debian's is: an append after a failed append is one of them. What matters comes in statuses.
class NoDiary final : public rocksdb::Logger {
 public:
  using rocksdb::Logger::Logv;
  void Logv(const char*, va_list) override {}
};

// The budget is small on purpose: a repository sits beside a training run that wants the memory. Payloads pass through
// without staying.
rocksdb::DBOptions db_options(const RocksOptions& options, const std::shared_ptr<RocksStore::Events>& events) {
  rocksdb::DBOptions db;
  db.create_if_missing = options.create && !options.read_only;
  db.create_missing_column_families = db.create_if_missing;
  db.max_open_files = options.read_only ? -1 : 512;  // Beside an owner, an open file stays readable when he drops it.
  db.max_background_jobs = 2;
  db.max_total_wal_size = 64 << 20;
  // A torn last record is what a crash leaves. A damaged one is a lost version, and must not pass for a crash.
  db.wal_recovery_mode = rocksdb::WALRecoveryMode::kTolerateCorruptedTailRecords;
  db.db_write_buffer_size = 32 << 20;
  db.bytes_per_sync = 8 << 20;
  db.advise_random_on_open = false;
  db.info_log = std::make_shared<NoDiary>();
  db.listeners.push_back(std::make_shared<RocksListener>(events));
  return db;
}

/// When a table's index is read: with the first look at the table, as is quickest, or when it is needed. A table whose
/// index is damaged keeps the whole database from being opened in the first way.
enum class Indexes { at_once, late };
enum class Family { records, blobs, payloads };

// A library without zstd writes records as they are. It cannot read what another build compressed: such a repository is
// opened with a build that has zstd.
rocksdb::CompressionType record_compression() {
  const std::vector<rocksdb::CompressionType> known = rocksdb::GetSupportedCompressions();
  const bool has_zstd = std::find(known.begin(), known.end(), rocksdb::kZSTD) != known.end();
  return has_zstd ? rocksdb::kZSTD : rocksdb::kNoCompression;
}

rocksdb::ColumnFamilyOptions record_options(const std::shared_ptr<rocksdb::Cache>& cache, Family kind,
                                            Indexes indexes) {
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = cache;
  table.block_size = 16 << 10;
  table.format_version = 5;
  table.cache_index_and_filter_blocks = indexes == Indexes::late;
  if (kind != Family::records) table.flush_block_policy_factory = make_block_layout(kind == Family::blobs);
  rocksdb::ColumnFamilyOptions family;
  family.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  // Architectures say the same words for each layer. Payloads have little to squeeze, and are read where they lie.
  family.compression = kind == Family::records ? record_compression() : rocksdb::kNoCompression;
  if (kind == Family::blobs) family.table_properties_collector_factories.push_back(make_head_bytes_notes());
  family.write_buffer_size = 8 << 20;
  return family;
}

rocksdb::ColumnFamilyOptions payload_options(const std::shared_ptr<rocksdb::Cache>& cache, Indexes indexes) {
  rocksdb::ColumnFamilyOptions family = record_options(cache, Family::payloads, indexes);
  // Table files come in at the lowest level that has room for their keys. Nothing makes that level compact by itself,
  // so a payload is written once.
  family.max_bytes_for_level_base = std::uint64_t{1} << 50;
  family.target_file_size_base = kTableBytesMax;
  family.max_compaction_bytes = std::uint64_t{1} << 50;
  return family;
}

bool is_of_rocksdb(const std::string& name) {
  for (const char* prefix :
       {"LOCK", "LOG", "MANIFEST-", "IDENTITY", "OPTIONS-", "lost+found", kIncoming, kReserveName}) {
    if (name.rfind(prefix, 0) == 0) return true;
  }
  const std::string extension = fs::path(name).extension();
  return extension == ".log" || extension == ".dbtmp" || extension == ".sst";
}

// A new folder is its owner's alone: whether others may read the stored versions is for its owner to say (chmod), and
// one that is there stays as it is.
Status make_folder(const std::string& folder) {
  fs::path path = folder;
  if (!path.has_filename()) path = path.parent_path();
  std::error_code error;
  if (path.has_parent_path()) fs::create_directories(path.parent_path(), error);
  if (!error && ::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) error.assign(errno, std::generic_category());
  if (error) return fail_errno(error.value(), "create the repository's folder " + folder);
  return {};
}

// A repository is made in a new or empty folder only, or where a crash interrupted the making of one.
Status check_folder(const RocksOptions& options) {
  std::error_code error;
  if (fs::exists(fs::path(options.folder) / "CURRENT", error)) return {};
  if (error) return fail_errno(error.value(), "open the repository " + options.folder);
  if (!options.create || options.read_only) {
    return fail(Code::not_found, format("{} holds no repository", options.folder));
  }
  FRESHET_TRY(make_folder(options.folder));
  for (fs::directory_iterator at(options.folder, error), end; !error && at != end; at.increment(error)) {
    if (is_of_rocksdb(at->path().filename())) continue;
    // Another process has made the repository since the first look.
    if (at->path().filename() == "CURRENT") return {};
    return fail(Code::failed_precondition, format("{} is not empty and holds no repository (it has {})", options.folder,
                                                  at->path().filename().string()));
  }
  if (error) return fail_errno(error.value(), "read the folder " + options.folder);
  return {};
}

// Who holds the lock, or 0. Only asked when another process does: closing a descriptor of the file would drop our own
// lock.
pid_t lock_holder(const std::string& folder) {
  const int file = ::open((folder + "/LOCK").c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return 0;
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  const bool held = ::fcntl(file, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
  ::close(file);
  return held ? lock.l_pid : 0;
}

Status open_status(const rocksdb::Status& status, const std::string& folder) {
  if (status.ok()) return {};
  const std::string text = status.ToString();
  if (text.find("lock hold by current process") != std::string::npos) {
    return fail(Code::unavailable, format("the repository {} is open already in this process", folder));
  }
  if (text.find("While lock file") != std::string::npos) {
    if (const pid_t holder = lock_holder(folder); holder != 0) {
      return fail(Code::unavailable, format("the repository {} is in use by process {}", folder, holder));
    }
    // He let it go just now, or his number is not known here.
    if (text.find(std::strerror(EAGAIN)) != std::string::npos ||
        text.find(std::strerror(EACCES)) != std::string::npos) {
      return fail(Code::unavailable, format("the repository {} is in use by another process", folder));
    }
  }
  if (is_no_space(status)) return fail(no_room(folder, kReserveBytes).error());
  const Status opened = status_of(status, "open the repository " + folder);
  // There is a database. So what is missing is a part of it.
  if (opened.error().code() == Code::not_found) return fail(Code::corrupt, opened.error().message());
  if (opened.error().code() == Code::invalid_argument) {
    return fail(Code::failed_precondition, format("{} holds a database that is not a repository ({})", folder, text));
  }
  return opened;
}

// RocksDB writes as soon as it opens a database as its owner does. So the format's number is read first, without
// writing, and of the records alone. Where it cannot be read, opening tells why.
Status refuse_other_format(const RocksOptions& options, rocksdb::Env* env) {
  rocksdb::DBOptions settings;
  settings.env = env;
  settings.info_log = std::make_shared<NoDiary>();
  settings.max_open_files = 64;
  settings.skip_stats_update_on_db_open = true;
  const std::vector<rocksdb::ColumnFamilyDescriptor> records = {
      {rocksdb::kDefaultColumnFamilyName,
       record_options(rocksdb::NewLRUCache(1 << 20), Family::records, Indexes::late)}};
  std::vector<rocksdb::ColumnFamilyHandle*> families;
  rocksdb::DB* opened = nullptr;
  const rocksdb::Status status = rocksdb::DB::OpenForReadOnly(settings, options.folder, records, &families, &opened);
  const std::unique_ptr<rocksdb::DB> db(opened);
  if (!status.ok()) return {};
  std::string stored;
  const bool is_there = db->Get({}, families[0], rocksdb::Slice(kFormatKey.data(), kFormatKey.size()), &stored).ok();
  for (rocksdb::ColumnFamilyHandle* family : families) db->DestroyColumnFamilyHandle(family);
  if (!is_there) return {};
  Status readable = check_format_number(stored);
  if (readable || readable.error().code() != Code::unsupported) return {};
  return fail(std::move(readable).error().with_context("open the repository " + options.folder));
}

// What a crash left half-written. Best effort: the names are not used again anyway.
void empty_incoming(const std::string& folder) {
  std::error_code error;
  fs::remove_all(fs::path(folder) / kIncoming, error);
  fs::create_directory(fs::path(folder) / kIncoming, error);
}

struct Database {
  std::unique_ptr<rocksdb::DB> db;
  std::vector<rocksdb::ColumnFamilyHandle*> families;
};

rocksdb::Status open_once(const RocksOptions& options, const rocksdb::DBOptions& settings, Indexes indexes,
                          Database& out) {
  rocksdb::LRUCacheOptions cache_options;
  cache_options.capacity = 32 << 20;
  const std::shared_ptr<rocksdb::Cache> cache = rocksdb::NewLRUCache(cache_options);
  // Chunks are too large to stay in this cache. It is where their column family has its memory from, and a chunk that
  // passes through it is read where it lies, while RocksDB copies what it must not cache.
  cache_options.capacity = 1 << 20;
  cache_options.memory_allocator = make_chunk_memory();
  const std::shared_ptr<rocksdb::Cache> payload_cache = rocksdb::NewLRUCache(cache_options);
  const std::vector<rocksdb::ColumnFamilyDescriptor> families = {
      {rocksdb::kDefaultColumnFamilyName, record_options(cache, Family::records, indexes)},
      {"blobs", record_options(cache, Family::blobs, indexes)},
      {"payloads", payload_options(payload_cache, indexes)},
  };
  rocksdb::DB* db = nullptr;
  rocksdb::Status status;
  if (options.read_only) {
    // The owner may drop a file between our reading of its list and our opening of it: then the list is new.
    for (int attempt = 0; attempt < kReadOnlyOpensMax; ++attempt) {
      status = rocksdb::DB::OpenForReadOnly(settings, options.folder, families, &out.families, &db);
      if (status.ok() || !(status.IsPathNotFound() || status.IsCorruption() || status.IsIOError())) break;
    }
  } else {
    status = rocksdb::DB::Open(settings, options.folder, families, &out.families, &db);
  }
  out.db.reset(db);
  return status;
}

// Once more with less, where it fails for what can be done without.
rocksdb::Status open_somehow(const RocksOptions& options, rocksdb::DBOptions settings, Database& out) {
  Indexes indexes = Indexes::at_once;
  rocksdb::Status status = open_once(options, settings, indexes, out);
  if (status.IsCorruption()) status = open_once(options, settings, indexes = Indexes::late, out);
  if (!is_no_space(status) || options.read_only) return status;
  std::error_code ignored;
  fs::remove(fs::path(options.folder) / kReserveName, ignored);
  settings.avoid_flush_during_recovery = true;  // What is in the log may stay there.
  return open_once(options, settings, indexes, out);
}

}  // namespace

rocksdb::Options payload_table_options() {
  return rocksdb::Options(db_options({}, std::make_shared<RocksStore::Events>()),
                          payload_options(rocksdb::NewLRUCache(1 << 20), Indexes::at_once));
}

rocksdb::Options blob_table_options() {
  return rocksdb::Options(db_options({}, std::make_shared<RocksStore::Events>()),
                          record_options(rocksdb::NewLRUCache(1 << 20), Family::blobs, Indexes::at_once));
}

Result<std::unique_ptr<RocksStore>> RocksStore::open(const RocksOptions& options) {
  if (options.folder.empty()) return fail(Code::invalid_argument, "the repository's folder has no name");
  FRESHET_TRY(check_folder(options));
  auto store = std::make_unique<RocksStore>();
  store->folder = options.folder;
  store->read_only = options.read_only;
  store->events = std::make_shared<Events>();
  store->env = rocksdb::NewCompositeEnv(make_table_file_system());
  rocksdb::DBOptions settings = db_options(options, store->events);
  settings.env = store->env.get();
  std::error_code ignored;
  if (!options.read_only && fs::exists(fs::path(options.folder) / "CURRENT", ignored)) {
    FRESHET_TRY(refuse_other_format(options, store->env.get()));
  }
  Database opened;
  FRESHET_TRY(open_status(open_somehow(options, settings, opened), options.folder));
  store->db = std::move(opened.db);
  store->records = opened.families[0];
  store->blobs = opened.families[1];
  store->payloads = opened.families[2];
  if (!options.read_only) {
    empty_incoming(options.folder);
    store->lay_by_reserve();
  }
  return store;
}

RocksStore::~RocksStore() {
  if (db == nullptr) return;
  // Whoever opens the folder for reading would go through the log each time, which takes longer than all the rest.
  if (!read_only && bytes_in_memory() > kLogBytesLeftMax) {
    db->Flush({}, {records, blobs, payloads}).PermitUncheckedError();
  }
  for (rocksdb::ColumnFamilyHandle* family : {records, blobs, payloads}) db->DestroyColumnFamilyHandle(family);
  db->Close().PermitUncheckedError();
}

std::string RocksStore::new_table_path() { return format("{}/{}/{}.sst", folder, kIncoming, ++tables); }

}  // namespace freshet
