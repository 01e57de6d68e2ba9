#include "repo/rocks_store.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cstdarg>
#include <filesystem>
#include <vector>

#include <rocksdb/cache.h>
#include <rocksdb/env.h>
#include <rocksdb/listener.h>
#include <rocksdb/table.h>
#include "core/format.h"
#include "repo/chunk_memory.h"
#include "repo/table_files.h"

namespace freshet {
namespace {

namespace fs = std::filesystem;

constexpr int kReadOnlyOpensMax = 3;
constexpr char kIncoming[] = "incoming";

// After a full disk RocksDB would look for room every few seconds and be busy meanwhile. Whoever writes next knows
// better when to try: recover() does.
class NoRecoveryByItself final : public rocksdb::EventListener {
 public:
  explicit NoRecoveryByItself(std::shared_ptr<std::atomic<bool>> stopped) : stopped_(std::move(stopped)) {}
  void OnBackgroundError(rocksdb::BackgroundErrorReason reason, rocksdb::Status*) override {
    // Who writes is told of its own errors, and brings the database back itself.
    const bool in_background =
        reason == rocksdb::BackgroundErrorReason::kFlush || reason == rocksdb::BackgroundErrorReason::kCompaction;
    if (in_background) *stopped_ = true;
  }
  void OnErrorRecoveryBegin(rocksdb::BackgroundErrorReason, rocksdb::Status, bool* auto_recovery) override {
    *auto_recovery = false;
  }

 private:
  const std::shared_ptr<std::atomic<bool>> stopped_;
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
rocksdb::DBOptions db_options(const RocksOptions& options, const std::shared_ptr<std::atomic<bool>>& stopped) {
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
  db.listeners.push_back(std::make_shared<NoRecoveryByItself>(stopped));
  return db;
}

rocksdb::ColumnFamilyOptions record_options(const std::shared_ptr<rocksdb::Cache>& cache) {
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = cache;
  table.block_size = 16 << 10;
  table.format_version = 5;
  rocksdb::ColumnFamilyOptions family;
  family.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  family.compression = rocksdb::kNoCompression;
  family.write_buffer_size = 8 << 20;
  return family;
}

rocksdb::ColumnFamilyOptions payload_options(const std::shared_ptr<rocksdb::Cache>& cache) {
  rocksdb::ColumnFamilyOptions family = record_options(cache);
  // Table files come in at the lowest level that has room for their keys. Nothing makes that level compact by itself,
  // so a payload is written once.
  family.max_bytes_for_level_base = std::uint64_t{1} << 50;
  family.target_file_size_base = kTableBytesMax;
  family.max_compaction_bytes = std::uint64_t{1} << 50;
  return family;
}

bool is_of_rocksdb(const std::string& name) {
  for (const char* prefix : {"LOCK", "LOG", "MANIFEST-", "IDENTITY", "OPTIONS-", "lost+found", kIncoming}) {
    if (name.rfind(prefix, 0) == 0) return true;
  }
  const std::string extension = fs::path(name).extension();
  return extension == ".log" || extension == ".dbtmp" || extension == ".sst";
}

// A repository is made in a new or empty folder only, or where a crash interrupted the making of one.
Status check_folder(const RocksOptions& options) {
  std::error_code error;
  if (fs::exists(fs::path(options.folder) / "CURRENT", error)) return {};
  if (!options.create || options.read_only) {
    return fail(Code::not_found, format("{} holds no repository", options.folder));
  }
  fs::create_directories(options.folder, error);
  if (error) return fail_errno(error.value(), "create the repository's folder " + options.folder);
  for (fs::directory_iterator at(options.folder, error), end; !error && at != end; at.increment(error)) {
    if (is_of_rocksdb(at->path().filename())) continue;
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
  }
  return status_of(status, "open the repository " + folder);
}

// What a crash left half-written. Best effort: the names are not used again anyway.
void empty_incoming(const std::string& folder) {
  std::error_code error;
  fs::remove_all(fs::path(folder) / kIncoming, error);
  fs::create_directory(fs::path(folder) / kIncoming, error);
}

}  // namespace

rocksdb::Options payload_table_options() {
  return rocksdb::Options(db_options({}, std::make_shared<std::atomic<bool>>()),
                          payload_options(rocksdb::NewLRUCache(1 << 20)));
}

Status RocksStore::check_room(std::uint64_t bytes) const {
  std::uint64_t in_memory = 0;
  db->GetAggregatedIntProperty(rocksdb::DB::Properties::kCurSizeAllMemTables, &in_memory);
  struct statvfs disk {};
  if (::statvfs(folder.c_str(), &disk) != 0) return {};  // The write itself will tell.
  const std::uint64_t room = std::uint64_t{disk.f_bavail} * disk.f_frsize;
  if (room >= bytes + in_memory + kSpareBytes) return {};
  return fail(Code::out_of_space, format("{} has {} bytes left: No space left on device", folder, room));
}

Result<std::unique_ptr<RocksStore>> RocksStore::open(const RocksOptions& options) {
  if (options.folder.empty()) return fail(Code::invalid_argument, "the repository's folder has no name");
  FRESHET_TRY(check_folder(options));
  rocksdb::LRUCacheOptions cache_options;
  cache_options.capacity = 32 << 20;
  const std::shared_ptr<rocksdb::Cache> cache = rocksdb::NewLRUCache(cache_options);
  // Chunks are too large to stay in this cache. It is where their column family has its memory from, and a chunk that
  // passes through it is read where it lies, while RocksDB copies what it must not cache.
  cache_options.capacity = 1 << 20;
  cache_options.memory_allocator = make_chunk_memory();
  const std::shared_ptr<rocksdb::Cache> payload_cache = rocksdb::NewLRUCache(cache_options);
  const std::vector<rocksdb::ColumnFamilyDescriptor> families = {
      {rocksdb::kDefaultColumnFamilyName, record_options(cache)},
      {"blobs", record_options(cache)},
      {"payloads", payload_options(payload_cache)},
  };
  const auto stopped = std::make_shared<std::atomic<bool>>(false);
  std::unique_ptr<rocksdb::Env> env = rocksdb::NewCompositeEnv(make_table_file_system());
  rocksdb::DBOptions db_settings = db_options(options, stopped);
  db_settings.env = env.get();
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* db = nullptr;
  rocksdb::Status status;
  if (options.read_only) {
    // The owner may drop a file between our reading of its list and our opening of it: then the list is new.
    for (int attempt = 0; attempt < kReadOnlyOpensMax; ++attempt) {
      status = rocksdb::DB::OpenForReadOnly(db_settings, options.folder, families, &handles, &db);
      if (status.ok() || !(status.IsPathNotFound() || status.IsCorruption() || status.IsIOError())) break;
    }
  } else {
    status = rocksdb::DB::Open(db_settings, options.folder, families, &handles, &db);
  }
  FRESHET_TRY(open_status(status, options.folder));

  auto store = std::make_unique<RocksStore>();
  store->stopped = stopped;
  store->folder = options.folder;
  store->read_only = options.read_only;
  store->env = std::move(env);
  store->db.reset(db);
  store->records = handles[0];
  store->blobs = handles[1];
  store->payloads = handles[2];
  if (!options.read_only) empty_incoming(options.folder);
  return store;
}

RocksStore::~RocksStore() {
  if (db == nullptr) return;
  for (rocksdb::ColumnFamilyHandle* family : {records, blobs, payloads}) db->DestroyColumnFamilyHandle(family);
  db->Close().PermitUncheckedError();
}

std::string RocksStore::new_table_path() { return format("{}/{}/{}.sst", folder, kIncoming, ++tables); }

}  // namespace freshet
