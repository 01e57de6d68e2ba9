// SPDX-License-Identifier: Apache-2.0
/// Blobs on their way into RocksDB.
///
/// A payload is written to the disk once: its chunks go straight into a table file, which the database then takes in by
/// a link, past its log and memory tables. A put of few bytes isn't worth a file of its own; it travels through the
/// log.

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <rocksdb/sst_file_writer.h>
#include "core/base/check.h"
#include "repo/rocks/store.h"

namespace freshet {
namespace {

/// What is copied at a time: whole chunks, few enough to stay in a cache.
constexpr std::size_t kBatchBytes = 4 * kChunkBytes;
/// A copy is digested while it lies in the cache next to the processor.
constexpr std::size_t kDigestedBytes = std::size_t{64} << 10;

rocksdb::Slice slice_of(Bytes bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

/// A table file that grows outside the database; its keys ascend.
class NewTable {
 public:
  explicit NewTable(RocksStore& store)
      : path_(store.new_table_path()),
        writer_(rocksdb::EnvOptions(options()), options(), store.payloads, /*invalidate_page_cache=*/false) {}
  ~NewTable() { ::unlink(path_.c_str()); }
  NewTable(const NewTable&) = delete;
  NewTable& operator=(const NewTable&) = delete;

  rocksdb::Status open() { return writer_.Open(path_); }
  rocksdb::Status add(const std::string& key, Bytes bytes) { return writer_.Put(key, slice_of(bytes)); }
  /// Durable on return.
  rocksdb::Status finish() { return writer_.Finish(); }
  std::uint64_t bytes() { return writer_.FileSize(); }
  const std::string& path() const { return path_; }

 private:
  static const rocksdb::Options& options() {
    static const rocksdb::Options kOptions = payload_table_options();
    return kOptions;
  }

  const std::string path_;
  rocksdb::SstFileWriter writer_;
};

class RocksBlobWriter final : public BlobWriter {
 public:
  explicit RocksBlobWriter(RocksStore& store) : store_(store) {}

  Status write(std::string_view key, Bytes bytes) override { return take(key, bytes, nullptr); }

  Result<Digest> write_and_digest(std::string_view key, Bytes bytes) override {
    DigestStream digest;
    FRESHET_TRY(take(key, bytes, &digest));
    return digest.finish();
  }

  Status commit() override {
    if (open_table_) FRESHET_TRY(finish_table());
    const std::shared_lock<std::shared_mutex> lock(store_.blobs_mutex);
    FRESHET_TRY(write_heads());
    for (const auto& table : tables_) {
      rocksdb::IngestExternalFileOptions options;
      options.move_files = true;
      options.write_global_seqno = false;
      FRESHET_TRY(
          status_of(store_.db->IngestExternalFile(store_.payloads, {table->path()}, options), "take in a table"));
    }
    return {};
  }

 private:
  // `digest` may be null.
  Status take(std::string_view key, Bytes bytes, DigestStream* digest) {
    if (!chunked_ && inline_bytes_ + bytes.size() <= kInlineBytesMax) {
      inline_bytes_ += bytes.size();
      inline_.emplace_back(std::string(key), std::string(slice_of(bytes).ToStringView()));
      if (digest != nullptr) digest->update(bytes_of(inline_.back().second.data(), bytes.size()));
      return {};
    }
    if (!chunked_) FRESHET_TRY(move_to_table());
    return write_chunks(key, bytes, digest);
  }

  // It is a large put after all.
  Status move_to_table() {
    chunked_ = true;
    std::vector<std::pair<std::string, std::string>> small = std::exchange(inline_, {});
    for (const auto& [key, bytes] : small)
      FRESHET_TRY(write_chunks(key, bytes_of(bytes.data(), bytes.size()), nullptr));
    return {};
  }

  Status write_chunks(std::string_view key, Bytes bytes, DigestStream* digest) {
    FRESHET_TRY(store_.check_room(bytes.size()));
    const std::string first = chunk_key(key, 0);
    // Keys ascend within a table.
    if (open_table_ && (first <= last_key_ || tables_.back()->bytes() >= kTableBytesMax)) FRESHET_TRY(finish_table());
    if (digest == nullptr) {
      FRESHET_TRY(add_chunks(key, 0, bytes));
    } else {
      FRESHET_TRY(add_copied(key, bytes, *digest));
    }
    heads_.emplace_back(std::string(key), BlobHead{.bytes = bytes.size(), .chunk_bytes = kChunkBytes});
    return {};
  }

  Status add_chunks(std::string_view key, std::uint64_t offset, Bytes bytes) {
    while (!bytes.empty()) {
      if (!open_table_) FRESHET_TRY(begin_table());
      last_key_ = chunk_key(key, static_cast<std::uint32_t>(offset / kChunkBytes));
      const Bytes chunk = bytes.first(std::min<std::size_t>(kChunkBytes, bytes.size()));
      FRESHET_TRY(status_of(tables_.back()->add(last_key_, chunk), "write a blob"));
      offset += chunk.size();
      bytes = bytes.subspan(chunk.size());
    }
    return {};
  }

  // What is written is a copy, so that the digest is its own whoever changes the bytes meanwhile. Another thread copies
  // and digests a batch while this one writes the batch before.
  Status add_copied(std::string_view key, Bytes bytes, DigestStream& digest) {
    for (std::vector<std::byte>& batch : batches_) batch.resize(std::max(batch.size(), batch_of(bytes).size()));
    Bytes copied = copy_batch(bytes, batches_[0], digest);
    for (std::uint64_t offset = 0; !copied.empty();) {
      const Bytes rest = bytes.subspan(offset + copied.size());
      Bytes next;
      const auto copy_next = [&] {
        next = copy_batch(rest, batches_[(offset / kBatchBytes + 1) % batches_.size()], digest);
      };
      std::jthread ahead;
      try {
        if (!rest.empty()) ahead = std::jthread(copy_next);
      } catch (const std::system_error&) {
        copy_next();  // No thread is left.
      }
      FRESHET_TRY(add_chunks(key, offset, copied));
      if (ahead.joinable()) ahead.join();
      offset += copied.size();
      copied = next;
    }
    return {};
  }

  static Bytes batch_of(Bytes bytes) { return bytes.first(std::min(bytes.size(), kBatchBytes)); }

  static Bytes copy_batch(Bytes bytes, std::vector<std::byte>& to, DigestStream& digest) {
    const Bytes from = batch_of(bytes);
    for (std::size_t at = 0; at < from.size(); at += kDigestedBytes) {
      const Bytes piece = from.subspan(at, std::min(kDigestedBytes, from.size() - at));
      std::memcpy(to.data() + at, piece.data(), piece.size());
      digest.update(Bytes(to).subspan(at, piece.size()));
    }
    return Bytes(to).first(from.size());
  }

  Status begin_table() {
    tables_.push_back(std::make_unique<NewTable>(store_));
    open_table_ = true;
    return status_of(tables_.back()->open(), "begin a table");
  }

  Status finish_table() {
    open_table_ = false;
    return status_of(tables_.back()->finish(), "write blobs");
  }

  // Heads come before chunks, so that no chunk is ever without one: what a crash leaves can be listed, and erased.
  Status write_heads() {
    rocksdb::WriteBatch batch;
    for (const auto& [key, head] : heads_) batch.Put(store_.blobs, head_key(key), encode(head)).PermitUncheckedError();
    for (const auto& [key, bytes] : inline_) {
      batch.Put(store_.blobs, head_key(key), encode(BlobHead{.bytes = bytes.size()})).PermitUncheckedError();
      batch.Put(store_.blobs, inline_key(key), bytes).PermitUncheckedError();
    }
    if (batch.Count() == 0) return {};
    FRESHET_TRY(store_.check_room(batch.GetDataSize()));
    rocksdb::WriteOptions options;
    options.sync = true;
    return status_of(store_.db->Write(options, &batch), "write blob heads");
  }

  RocksStore& store_;
  std::vector<std::pair<std::string, std::string>> inline_;
  std::uint64_t inline_bytes_ = 0;
  bool chunked_ = false;
  std::vector<std::pair<std::string, BlobHead>> heads_;
  std::vector<std::unique_ptr<NewTable>> tables_;
  bool open_table_ = false;
  std::string last_key_;
  std::array<std::vector<std::byte>, 2> batches_;
};

}  // namespace

std::unique_ptr<BlobWriter> make_rocks_blob_writer(RocksStore& store) {
  return std::make_unique<RocksBlobWriter>(store);
}

}  // namespace freshet
