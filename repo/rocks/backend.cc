// SPDX-License-Identifier: Apache-2.0
/// The embedded durable backend: a RocksDB folder that one process owns. repo/FORMAT.md has the keys.

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/base/format.h"
#include "core/base/mutex.h"
#include "repo/local/side_by_side.h"
#include "repo/rocks/derived_texts.h"
#include "repo/rocks/handover.h"
#include "repo/rocks/store.h"

namespace freshet {
namespace {

rocksdb::ReadOptions payload_read() {
  rocksdb::ReadOptions options;
  options.fill_cache = true;         // It does not stay there, but is not copied on its way either.
  options.verify_checksums = false;  // Whoever reads a payload checks its digest.
  return options;
}

/// A blob of so much is read by several threads: the disk has the next request while one chunk is copied and digested.
constexpr std::uint64_t kSharedBytesMin = std::uint64_t{8} << 20;
constexpr std::size_t kChunkReaders = 2;

/// Digests the chunks of a blob in their order, whoever reads them and when: each is digested soon after it came, while
/// it is in the cache, by a thread that has just read one. Any thread.
class DigestInOrder {
 public:
  DigestInOrder(MutableBytes out, std::uint64_t chunk_bytes)
      : out_(out), chunk_bytes_(chunk_bytes), chunks_((out.size() + chunk_bytes - 1) / chunk_bytes), came_(chunks_) {}

  std::size_t chunks() const { return chunks_; }
  MutableBytes part(std::size_t chunk) const {
    const std::uint64_t begin = chunk * chunk_bytes_;
    return out_.subspan(begin, std::min<std::uint64_t>(chunk_bytes_, out_.size() - begin));
  }

  void has_come(std::size_t chunk) {
    std::size_t next = 0;
    {
      const MutexLock lock(mutex_);
      came_[chunk] = true;
      if (busy_ || !came_[next_]) return;
      busy_ = true;
      next = next_;
    }
    for (bool more = true; more;) {
      digest_.update(part(next));  // Of whoever is busy.
      const MutexLock lock(mutex_);
      next = ++next_;
      more = busy_ = next < chunks_ && came_[next];
    }
  }

  /// Once all have come, and their readers are done.
  Digest finish() { return digest_.finish(); }

 private:
  const MutableBytes out_;
  const std::uint64_t chunk_bytes_;
  const std::size_t chunks_;
  Mutex mutex_;
  std::vector<bool> came_ FRESHET_GUARDED_BY(mutex_);
  std::size_t next_ FRESHET_GUARDED_BY(mutex_) = 0;
  bool busy_ FRESHET_GUARDED_BY(mutex_) = false;
  DigestStream digest_;
};

class RocksBackend final : public Backend {
 public:
  explicit RocksBackend(std::unique_ptr<RocksStore> store) : store_(std::move(store)) {}

  std::string_view kind() const override { return "rocksdb"; }
  bool durable() const override { return true; }
  bool read_only() const override { return store_->read_only; }

  Result<std::unique_ptr<BlobWriter>> write_blobs() override {
    FRESHET_TRY(check_writable());
    FRESHET_TRY(go_on());
    return make_rocks_blob_writer(*store_);
  }

  Status read_blob(std::string_view key, std::uint64_t offset, MutableBytes out) const override {
    FRESHET_ASSIGN(const BlobHead head, head_of(key));
    if (offset > head.bytes || out.size() > head.bytes - offset) {
      return fail(Code::corrupt, format("the blob has {} bytes, not {}", head.bytes, offset + out.size()));
    }
    if (out.empty()) return {};
    if (head.chunk_bytes == 0) return read_value(store_->blobs, inline_key(key), head.bytes, offset, out);
    return read_chunks(key, head, offset, out);
  }

  Result<Digest> read_and_digest(std::string_view key, MutableBytes out) const override {
    FRESHET_ASSIGN(const BlobHead head, head_of(key));
    if (head.chunk_bytes == 0 || head.bytes != out.size()) {
      FRESHET_TRY(read_blob(key, 0, out));
      return digest_of(out);
    }
    DigestInOrder digest(out, head.chunk_bytes);
    const std::size_t readers = head.bytes < kSharedBytesMin ? 1 : kChunkReaders;
    const auto read_one = [&](std::size_t chunk) -> Status {
      const MutableBytes part = digest.part(chunk);
      FRESHET_TRY(
          read_value(store_->payloads, chunk_key(key, static_cast<std::uint32_t>(chunk)), part.size(), 0, part));
      digest.has_come(chunk);
      return {};
    };
    FRESHET_TRY(run_side_by_side(digest.chunks(), readers, read_one));
    return digest.finish();
  }

  Status erase_blob(std::string_view key) override {
    FRESHET_TRY(check_writable());
    FRESHET_TRY(go_on());
    const std::string first = chunk_key(key, 0);
    const std::string last = chunk_key(key, 0xffffffff);
    const std::shared_lock<std::shared_mutex> lock(store_->blobs_mutex);
    rocksdb::WriteBatch batch;
    batch.DeleteRange(store_->payloads, first, last).PermitUncheckedError();
    batch.Delete(store_->blobs, inline_key(key)).PermitUncheckedError();
    batch.Delete(store_->blobs, head_key(key)).PermitUncheckedError();
    static_cast<void>(store_->make_room(batch.GetDataSize()));
    return status_of(store_->db->Write({}, &batch), "erase a blob");
  }

  Status list_blobs(const std::function<bool(std::string_view, std::uint64_t)>& each) const override {
    Status damaged;
    FRESHET_TRY(iterate(store_->blobs, std::string(1, kHeadPrefix), [&](std::string_view key, std::string_view value) {
      const Result<BlobHead> head = decode_blob_head(value);
      if (!head) damaged = fail(head.error());
      return !head || each(key.substr(1), head->bytes);
    }));
    return damaged;
  }

  Status reclaim() override {
    FRESHET_TRY(check_writable());
    FRESHET_TRY(go_on());
    static_cast<void>(store_->make_room(0));
    return reclaim_space(*store_);
  }
  std::vector<std::string> left_by_reclaim() const override {
    const MutexLock lock(store_->left_mutex);
    return store_->left;
  }
  Result<std::vector<MediumDamage>> find_damage(
      const std::function<void(std::uint64_t done, std::uint64_t total)>& on_read) const override {
    return find_damage_in(*store_, on_read);
  }

  Status apply(const Batch& changes) override {
    FRESHET_TRY(check_writable());
    FRESHET_TRY(go_on());
    rocksdb::WriteBatch batch;
    for (const auto& change : changes) {
      if (const auto* put = std::get_if<Put>(&change)) {
        batch.Put(store_->records, put->key, put->value).PermitUncheckedError();
      } else {
        batch.Delete(store_->records, std::get<Erase>(change).key).PermitUncheckedError();
      }
    }
    // What erases may go on: it is how room is made, and the spare room is for it.
    if (batch.HasDelete()) {
      static_cast<void>(store_->make_room(batch.GetDataSize()));
    } else {
      FRESHET_TRY(store_->check_room(batch.GetDataSize()));
    }
    rocksdb::WriteOptions options;
    options.sync = true;
    return status_of(store_->db->Write(options, &batch), "write records");
  }

  Result<std::string> get(std::string_view key) const override {
    std::string value;
    FRESHET_TRY(status_of(store_->db->Get({}, store_->records, key, &value), "read a record"));
    return value;
  }

  Status scan(std::string_view prefix,
              const std::function<bool(std::string_view, std::string_view)>& each) const override {
    return iterate(store_->records, prefix, each);
  }

  Status recover() override {
    FRESHET_TRY(check_writable());
    return status_of(store_->db->Resume(), "resume the repository " + store_->folder);
  }

  Result<DiskUse> disk_use() const override { return disk_use_of(*store_); }

  std::string state() const override {
    std::string identity;
    if (!store_->db->GetDbIdentity(identity).ok()) return {};
    return format("{} {}", identity, store_->db->GetLatestSequenceNumber());
  }
  std::optional<std::string> derived(std::string_view name, std::uint64_t bytes_max) const override {
    return read_derived(*store_, name, bytes_max);
  }
  void keep_derived(std::string_view name, std::string_view text, Derived where) override {
    write_derived(*store_, name, text, where);
  }

 private:
  Status check_writable() const {
    if (!store_->read_only) return {};
    return fail(Code::failed_precondition, format("the repository {} is opened for reading only", store_->folder));
  }

  /// After an error of which no writer was told, all that was acknowledged is still in the log.
  Status go_on() {
    if (store_->events->damaged.exchange(false)) {
      store_->events->merges = false;
      // Else one would be begun again and again. Whoever collects garbage tries to get what is alive out of there.
      for (rocksdb::ColumnFamilyHandle* family : {store_->records, store_->blobs, store_->payloads}) {
        store_->db->SetOptions(family, {{"disable_auto_compactions", "true"}}).PermitUncheckedError();
      }
    }
    return store_->events->stopped.exchange(false) ? recover() : Status();
  }

  Result<BlobHead> head_of(std::string_view key) const {
    std::string value;
    FRESHET_TRY(status_of(store_->db->Get({}, store_->blobs, head_key(key), &value), "find a blob"));
    return decode_blob_head(value);
  }

  // Copies out.size() bytes from `offset` of a value that must be `bytes` long.
  Status read_value(rocksdb::ColumnFamilyHandle* family, const std::string& key, std::uint64_t bytes,
                    std::uint64_t offset, MutableBytes out) const {
    rocksdb::PinnableSlice value;
    const rocksdb::Status status = store_->db->Get(payload_read(), family, key, &value);
    if (status.IsNotFound()) return fail(Code::corrupt, "a part of the blob is missing");
    FRESHET_TRY(status_of(status, "read a blob"));
    if (value.size() != bytes) {
      return fail(Code::corrupt, format("a part of the blob has {} bytes, not {}", value.size(), bytes));
    }
    came_from_rocksdb();
    std::memcpy(out.data(), value.data() + offset, out.size());
    goes_to_rocksdb();
    return {};
  }

  Status read_chunks(std::string_view key, const BlobHead& head, std::uint64_t offset, MutableBytes out) const {
    while (!out.empty()) {
      const std::uint64_t chunk = offset / head.chunk_bytes;
      const std::uint64_t begin = chunk * head.chunk_bytes;
      const std::uint64_t bytes = std::min<std::uint64_t>(head.chunk_bytes, head.bytes - begin);
      const std::uint64_t part = std::min<std::uint64_t>(begin + bytes - offset, out.size());
      FRESHET_TRY(read_value(store_->payloads, chunk_key(key, static_cast<std::uint32_t>(chunk)), bytes, offset - begin,
                             out.first(part)));
      out = out.subspan(part);
      offset += part;
    }
    return {};
  }

  Status iterate(rocksdb::ColumnFamilyHandle* family, std::string_view prefix,
                 const std::function<bool(std::string_view, std::string_view)>& each) const {
    const std::unique_ptr<rocksdb::Iterator> at(store_->db->NewIterator({}, family));
    std::vector<Hole> holes;
    FRESHET_TRY(scan_readable(*at, prefix, each, holes));
    return status_of(holes, "scan");
  }

  const std::unique_ptr<RocksStore> store_;
};

}  // namespace

Result<std::unique_ptr<Backend>> open_rocks_backend(const RocksOptions& options) {
  FRESHET_ASSIGN(std::unique_ptr<RocksStore> store, RocksStore::open(options));
  return std::make_unique<RocksBackend>(std::move(store));
}

}  // namespace freshet
