// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A backend keeps a repository's bytes: blobs (tensor payloads; large, immutable) and records (small; changed in
/// atomic batches). There is one interface, and one conformance suite (tests/conformance/backend_conformance.h) that
/// every backend runs. The memory backend (repo/backend/memory_backend.cc) is the tutorial.
///
/// Any thread; a BlobWriter belongs to one thread. After a failed commit or batch, writes may return the same error
/// until recover() succeeds. A backend never reports bytes as kept that may be lost.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/base/digest.h"
#include "core/base/result.h"
#include "core/model/tensor.h"
#include "repo/object_store/object_store.h"

namespace freshet {

/// A whole object of the medium, with bytes of a blob, and a request by which a process without credentials reads it.
struct SignedPart {
  SignedRequest request;
  std::uint64_t bytes = 0;
};

/// Bytes that another process is to bring into the medium itself: an object of at most kDigestPartBytes.
struct PartToBring {
  std::uint64_t bytes = 0;
  std::uint32_t crc32c = 0;
};
/// Requests that create these objects, in their order. The process later names the objects that it created.
struct SignedUploads {
  struct Upload {
    std::string object;
    SignedRequest request;
  };
  std::vector<Upload> uploads;
  SignedRequest probe;  ///< Reads the first object: not_found comes from the medium itself.
};
/// An object that another process brought. The medium answers for length and checksum, and the process for the digest.
struct BroughtPart {
  std::string object;
  std::uint64_t bytes = 0;
  std::uint32_t crc32c = 0;
  Digest digest;
};

/// Writes blobs. Without commit(), its destructor leaves nothing behind. One thread at a time. A writer must not
/// outlive its backend.
class BlobWriter {
 public:
  virtual ~BlobWriter() = default;

  /// Takes a whole blob. When it returns, the caller may free the bytes. Replaces a blob that an earlier, unfinished
  /// put left. Cheapest in ascending order of the keys.
  virtual Status write(std::string_view key, Bytes bytes) = 0;
  /// The same, and returns the digest of the taken bytes. A backend that copies computes the digest during the copy. So
  /// it reads the bytes once, and the digest is that of the kept bytes, even if somebody changes `bytes` meanwhile.
  /// Here `bytes` must stay where they are until commit() returned, or until the writer ended: a backend may read them
  /// on other threads.
  virtual Result<Digest> write_and_digest(std::string_view key, Bytes bytes);
  /// Takes a blob that another process brought: these objects, which find_brought() found, one after another.
  virtual Status bring(std::string_view key, std::span<const BroughtPart> parts);
  /// On return, all written blobs are readable and durable. Not atomic: a crash may leave some of them. So a blob
  /// counts only if a record names it. After an error this writer can do nothing more.
  virtual Status commit() = 0;
  /// Instead of commit(). On return, the medium has all written bytes, and the caller may free them. True: the blobs
  /// come to be, all or none, with the batch of records that has this writer's Backend::NewBlobs; the writer lives
  /// until then. A medium for which this costs less than a commit of their own does so. False: they are readable and
  /// durable. After an error this writer can do nothing more.
  virtual Result<bool> finish();
  /// After finish(): the next batch can still have the blobs. unavailable: it is too late, and none of them stays.
  virtual Status check_finished() const { return {}; }
};

/// A part of the medium that cannot be read, needed or not.
struct MediumDamage {
  std::string where;        ///< "table 000012.sst".
  std::string reason;       ///< In the medium's own words.
  bool in_records = false;  ///< True: in records; false: in blobs.
  /// The keys of the existing blobs with bytes in this part. Erased blobs are not listed.
  std::vector<std::string> blobs;
};

struct DiskUse {
  std::uint64_t bytes = 0;           ///< All bytes.
  std::uint64_t metadata_bytes = 0;  ///< The part of `bytes` for records, keys and the medium's own tables.
};

class Backend {
 public:
  struct Put {
    std::string key;
    std::string value;
  };
  struct Erase {
    std::string key;
  };
  /// The blobs of a writer whose finish() answered true; once.
  struct NewBlobs {
    BlobWriter* writer = nullptr;
  };
  using Batch = std::vector<std::variant<Put, Erase, NewBlobs>>;

  virtual ~Backend() = default;

  /// "memory", "rocksdb", "bucket".
  virtual std::string_view kind() const = 0;
  /// True: acknowledged writes survive the process and the host.
  virtual bool durable() const = 0;
  /// True: every write is refused with failed_precondition.
  virtual bool read_only() const = 0;
  /// The number of reading threads that gets the most out of a durable medium.
  virtual std::size_t readers_max() const { return 4; }

  /// No error: records that were read before are still the present ones. A caller that keeps names in memory asks this
  /// before it answers with them. A medium that lets one process write at a time never has an error. unavailable:
  /// another process owns the records by now, or may own them.
  virtual Status check_current() const { return {}; }

  virtual Result<std::unique_ptr<BlobWriter>> write_blobs() = 0;
  /// Reads out.size() bytes from `offset`. not_found: there is no such blob. corrupt: it is shorter.
  virtual Status read_blob(std::string_view key, std::uint64_t offset, MutableBytes out) const = 0;
  /// Reads a blob of out.size() bytes into `out`, and returns the digest of the read bytes. Errors as read_blob().
  virtual Result<Digest> read_and_digest(std::string_view key, MutableBytes out) const;
  /// A whole blob that is to be read.
  struct WholeRead {
    std::string key;
    MutableBytes out;
  };
  /// Reads those of the blobs that a medium keeps side by side, if one request for several of them costs less than one
  /// for each, and answers the digests of what was read. The other ones have none, and so has what cannot be read:
  /// read_and_digest() says why. cancelled: the thread's Interruption wants it.
  virtual Result<std::vector<std::optional<Digest>>> read_neighbours(std::span<const WholeRead> reads) const;
  /// Requests that read the blob from the medium itself, for `life` from now: an object for each kDigestPartBytes, one
  /// after another. Empty: the blob shares its objects with others. not_found: there is no such blob. unsupported: the
  /// medium signs nothing.
  virtual Result<std::vector<SignedPart>> sign_blob(std::string_view key, Duration life) const;
  /// Requests by which another process creates objects with these bytes, for `life` from now; each has a name that was
  /// never used. unsupported: as sign_blob().
  virtual Result<SignedUploads> sign_uploads(std::span<const PartToBring> parts, Duration life);
  /// Other processes may bring blobs, and vouch for their digests.
  virtual bool takes_brought() const { return false; }
  /// For each part: true if its object is there, with the right length (and checksum, where the medium keeps one), and
  /// may still become a part of a blob.
  virtual Result<std::vector<bool>> find_brought(std::span<const BroughtPart> parts) const;
  /// No error if the blob does not exist. Durable with the next commit or batch; reclaim() frees the space.
  virtual Status erase_blob(std::string_view key) = 0;
  /// Calls `each` for every blob key with its size, in key order, until it returns false. If the medium lost some
  /// blobs, `each` gets all others, and the result is corrupt.
  virtual Status list_blobs(const std::function<bool(std::string_view key, std::uint64_t bytes)>& each) const = 0;
  /// Gives the space of erased blobs back to the medium. Damage in erased blobs is no error.
  virtual Status reclaim() = 0;
  /// The parts that the last reclaim() could not free, with the reason; a line each.
  virtual std::vector<std::string> left_by_reclaim() const { return {}; }

  /// All of the batch or nothing; durable on return.
  virtual Status apply(const Batch& batch) = 0;
  virtual Result<std::string> get(std::string_view key) const = 0;
  /// Calls `each` for every record with a key that starts with `prefix`, in key order (bytes, unsigned), until it
  /// returns false. `each` may call get(). If the medium lost some records, `each` gets all others, and the result is
  /// corrupt.
  virtual Status scan(std::string_view prefix,
                      const std::function<bool(std::string_view key, std::string_view value)>& each) const = 0;

  /// Makes writes possible again after a failed write, when its cause is gone; harmless if nothing failed. Acknowledged
  /// writes are kept; the failed batch is there whole or not at all.
  virtual Status recover() = 0;

  /// Reads all bytes of the medium, needed or not, and uses the medium's own checks. So it finds damage that no reader
  /// meets. A medium without checks finds none. `on_read` gets the bytes read so far, and the bytes in all.
  virtual Result<std::vector<MediumDamage>> find_damage(
      const std::function<void(std::uint64_t done, std::uint64_t total)>& on_read) const {
    static_cast<void>(on_read);
    return std::vector<MediumDamage>();
  }

  /// The space that the backend takes on the medium, as the medium counts it.
  virtual Result<DiskUse> disk_use() const = 0;

  // Derived texts: what can be made again from the records at any time, and is kept beside them because making it takes
  // long. A text that is missing or damaged is no damage. The reader checks what it reads. A medium without a place for
  // such texts keeps none, and these functions do nothing.

  /// A text for the present state of the medium: every write of records or blobs changes it, also a write by another
  /// process. Empty if the medium cannot tell. A caller that derives a text from all records notes the state, and
  /// believes its text while the state is the same.
  virtual std::string state() const { return {}; }
  /// Nothing if there is no text of that name, or it has more than `bytes_max`.
  virtual std::optional<std::string> derived(std::string_view name, std::uint64_t bytes_max) const {
    static_cast<void>(name);
    static_cast<void>(bytes_max);
    return std::nullopt;
  }
  /// Takes the place of the text of that name, or stands behind what it has so far. Nothing is synced, and a failure is
  /// told to nobody. A crash may leave a part. Without effect on a medium that is opened for reading only.
  enum class Derived { instead, behind };
  virtual void keep_derived(std::string_view name, std::string_view text, Derived where) {
    static_cast<void>(name);
    static_cast<void>(text);
    static_cast<void>(where);
  }
};

std::unique_ptr<Backend> make_memory_backend();
struct MemoryOptions {
  /// Room for blobs that is allocated and touched at once, so that no put waits for the kernel to clear pages. Blobs
  /// beyond this room are kept elsewhere.
  std::uint64_t touched_bytes = 0;
};
/// out_of_space: there is not enough memory.
Result<std::unique_ptr<Backend>> make_memory_backend(const MemoryOptions& options);

struct RocksOptions {
  std::string folder;
  /// Makes the folder and a repository in it, if there is none.
  bool create = true;
  /// Opens the folder beside its owner: the durable state of this moment, unchanging.
  bool read_only = false;
};
/// unavailable: another process owns the folder (and read_only is false). not_found: the folder holds no repository,
/// and `create` is false. failed_precondition: the folder holds other files.
Result<std::unique_ptr<Backend>> open_rocks_backend(const RocksOptions& options);

}  // namespace freshet
