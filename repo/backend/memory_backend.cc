// SPDX-License-Identifier: Apache-2.0
/// The tutorial of a backend: all in memory, everything that the interface promises and little more. A blob is
/// immutable, so readers copy a pointer under the lock and the bytes outside of it.

#include <cstring>
#include <map>

#include "core/base/format.h"
#include "core/base/mutex.h"
#include "core/vector/copy.h"
#include "repo/backend/backend.h"
#include "repo/backend/touched_memory.h"

namespace freshet {
namespace {

using Blob = std::shared_ptr<const BlobMemory>;
using Blobs = std::map<std::string, Blob, std::less<>>;
using Records = std::map<std::string, std::string, std::less<>>;

class MemoryBackend final : public Backend {
 public:
  // Gathers blobs aside; commit() is one step under the backend's lock.
  class Writer final : public BlobWriter {
   public:
    explicit Writer(MemoryBackend& backend) : backend_(backend) {}

    Status write(std::string_view key, Bytes bytes) override {
      return write_and_digest(key, bytes).map([](const Digest&) {});
    }

    Result<Digest> write_and_digest(std::string_view key, Bytes bytes) override {
      FRESHET_ASSIGN(std::shared_ptr<BlobMemory> blob, BlobMemory::take(backend_.touched_, bytes.size()));
      const Digest digest = copy_and_digest(blob->memory(), bytes);
      pending_.insert_or_assign(std::string(key), std::move(blob));
      return digest;
    }

    Status commit() override {
      const MutexLock lock(backend_.mutex_);
      for (auto& [key, blob] : pending_) backend_.blobs_.insert_or_assign(key, std::move(blob));
      pending_.clear();
      return {};
    }

   private:
    MemoryBackend& backend_;
    Blobs pending_;
  };

  explicit MemoryBackend(std::shared_ptr<TouchedMemory> touched) : touched_(std::move(touched)) {}

  std::string_view kind() const override { return "memory"; }
  bool durable() const override { return false; }
  bool read_only() const override { return false; }

  Result<std::unique_ptr<BlobWriter>> write_blobs() override { return std::make_unique<Writer>(*this); }

  Status read_blob(std::string_view key, std::uint64_t offset, MutableBytes out) const override {
    FRESHET_ASSIGN(const Blob blob, find(key));
    const Bytes bytes = blob->bytes();
    if (offset > bytes.size() || out.size() > bytes.size() - offset) {
      return fail(Code::corrupt, format("the blob has {} bytes, not {}", bytes.size(), offset + out.size()));
    }
    if (!out.empty()) std::memcpy(out.data(), bytes.data() + offset, out.size());
    return {};
  }

  Result<Digest> read_and_digest(std::string_view key, MutableBytes out) const override {
    FRESHET_ASSIGN(const Blob blob, find(key));
    if (blob->bytes().size() != out.size()) {
      return fail(Code::corrupt, format("the blob has {} bytes, not {}", blob->bytes().size(), out.size()));
    }
    return copy_and_digest(out, blob->bytes());
  }

  Status erase_blob(std::string_view key) override {
    const MutexLock lock(mutex_);
    if (const auto found = blobs_.find(key); found != blobs_.end()) blobs_.erase(found);
    return {};
  }

  Status list_blobs(const std::function<bool(std::string_view, std::uint64_t)>& each) const override {
    Blobs blobs;
    {
      const MutexLock lock(mutex_);
      blobs = blobs_;
    }
    for (const auto& [key, blob] : blobs) {
      if (!each(key, blob->bytes().size())) break;
    }
    return {};
  }

  Status reclaim() override { return {}; }

  Status apply(const Batch& batch) override {
    const MutexLock lock(mutex_);
    for (const auto& change : batch) {
      if (const auto* put = std::get_if<Put>(&change)) {
        records_.insert_or_assign(put->key, put->value);
      } else {
        records_.erase(std::get<Erase>(change).key);
      }
    }
    return {};
  }

  Result<std::string> get(std::string_view key) const override {
    const MutexLock lock(mutex_);
    const auto found = records_.find(key);
    if (found == records_.end()) return fail(Code::not_found, "no such record");
    return found->second;
  }

  Status scan(std::string_view prefix,
              const std::function<bool(std::string_view, std::string_view)>& each) const override {
    Records records;
    {
      const MutexLock lock(mutex_);
      for (auto at = records_.lower_bound(prefix); at != records_.end() && at->first.starts_with(prefix); ++at) {
        records.insert(records.end(), *at);
      }
    }
    for (const auto& [key, value] : records) {
      if (!each(key, value)) break;
    }
    return {};
  }

  Status recover() override { return {}; }

  Result<DiskUse> disk_use() const override {
    const MutexLock lock(mutex_);
    DiskUse use;
    for (const auto& [key, blob] : blobs_) {
      use.bytes += blob->bytes().size();
      use.metadata_bytes += key.size();
    }
    for (const auto& [key, value] : records_) use.metadata_bytes += key.size() + value.size();
    use.bytes += use.metadata_bytes;
    return use;
  }

 private:
  Result<Blob> find(std::string_view key) const {
    const MutexLock lock(mutex_);
    const auto found = blobs_.find(key);
    if (found == blobs_.end()) return fail(Code::not_found, "no such blob");
    return found->second;
  }

  const std::shared_ptr<TouchedMemory> touched_;  ///< Null when none was asked for.
  mutable Mutex mutex_;
  Blobs blobs_ FRESHET_GUARDED_BY(mutex_);
  Records records_ FRESHET_GUARDED_BY(mutex_);
};

}  // namespace

Result<Digest> BlobWriter::write_and_digest(std::string_view key, Bytes bytes) {
  FRESHET_TRY(write(key, bytes));
  return digest_of(bytes);
}

Result<std::vector<std::optional<Digest>>> Backend::read_neighbours(std::span<const WholeRead> reads) const {
  return std::vector<std::optional<Digest>>(reads.size());
}

Result<std::vector<SignedPart>> Backend::sign_blob(std::string_view, Duration) const {
  return fail(Code::unsupported, "the repository's medium signs no requests");
}

Result<SignedUploads> Backend::sign_uploads(std::span<const PartToBring>, Duration) {
  return fail(Code::unsupported, "the repository's medium signs no requests");
}

Result<std::vector<bool>> Backend::find_brought(std::span<const BroughtPart> parts) const {
  return std::vector<bool>(parts.size(), false);
}

Result<bool> BlobWriter::finish() {
  FRESHET_TRY(commit());
  return false;
}

Status BlobWriter::bring(std::string_view, std::span<const BroughtPart>) {
  return fail(Code::unsupported, "no other process brings bytes into this medium");
}

Result<Digest> Backend::read_and_digest(std::string_view key, MutableBytes out) const {
  FRESHET_TRY(read_blob(key, 0, out));
  return digest_of(out);
}

std::unique_ptr<Backend> make_memory_backend() { return std::make_unique<MemoryBackend>(nullptr); }

Result<std::unique_ptr<Backend>> make_memory_backend(const MemoryOptions& options) {
  if (options.touched_bytes == 0) return make_memory_backend();
  FRESHET_ASSIGN(std::shared_ptr<TouchedMemory> touched, TouchedMemory::create(options.touched_bytes));
  return std::make_unique<MemoryBackend>(std::move(touched));
}

}  // namespace freshet
