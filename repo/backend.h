// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Where a repository's bytes rest: blobs (tensor payloads; large, immutable) and records (small; changed in atomic
/// batches). One interface, one conformance suite (tests/conformance/backend_conformance.h) that every backend runs.
/// The memory backend (repo/memory_backend.cc) is the tutorial.
///
/// Any thread, but for a BlobWriter, which belongs to one. After a commit or a batch that failed, writes may answer the
/// same error until recover() succeeds: bytes that may be lost are never reported as kept.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/digest.h"
#include "core/result.h"
#include "core/tensor.h"

namespace freshet {

/// Blobs on their way. Destroyed without commit(), it leaves nothing behind. One thread at a time; must not outlive its
/// backend.
class BlobWriter {
 public:
  virtual ~BlobWriter() = default;

  /// Takes a whole blob; the bytes may go when it returns. One that an earlier, unfinished put left is replaced.
  /// Cheapest in ascending order of the keys.
  virtual Status write(std::string_view key, Bytes bytes) = 0;
  /// The same, with the digest of what was taken. A backend that copies anyway computes it on the way, so that the
  /// bytes are read once, and are those that it has even when somebody changes `bytes` meanwhile.
  virtual Result<Digest> write_and_digest(std::string_view key, Bytes bytes);
  /// All written blobs can be read and are durable on return. Not atomic: a crash may leave some of them, which is why
  /// only records make a blob count. After an error nothing more can be done with this writer.
  virtual Status commit() = 0;
};

/// A part of the medium that cannot be read, whether somebody needs what lay there or not.
struct MediumDamage {
  std::string where;        ///< "table 000012.sst".
  std::string reason;       ///< In the medium's own words.
  bool in_records = false;  ///< Or else in blobs.
  /// The keys of those that are there and have a part of them in it; erased ones have none.
  std::vector<std::string> blobs;
};

struct DiskUse {
  std::uint64_t bytes = 0;           ///< All.
  std::uint64_t metadata_bytes = 0;  ///< Of these: records, keys, and what the medium needs to find things again.
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
  using Batch = std::vector<std::variant<Put, Erase>>;

  virtual ~Backend() = default;

  /// "memory", "rocksdb".
  virtual std::string_view kind() const = 0;
  /// True when what was acknowledged survives the process and the host.
  virtual bool durable() const = 0;
  /// True when every write is refused with failed_precondition.
  virtual bool read_only() const = 0;
  /// True when BlobWriter::write_and_digest() reads each byte once, so that its digest is that of what is kept also
  /// when somebody changes the bytes meanwhile. Others are to be given bytes that stay.
  virtual bool proves_what_it_keeps() const { return false; }

  virtual Result<std::unique_ptr<BlobWriter>> write_blobs() = 0;
  /// Reads out.size() bytes from `offset`. not_found when there is no such blob; corrupt when it is shorter.
  virtual Status read_blob(std::string_view key, std::uint64_t offset, MutableBytes out) const = 0;
  /// Reads a blob of out.size() bytes, with the digest of what stands in `out` then. Errors as read_blob().
  virtual Result<Digest> read_and_digest(std::string_view key, MutableBytes out) const;
  /// Erasing what is not there is no error. Durable with the next commit or batch; space comes back with reclaim().
  virtual Status erase_blob(std::string_view key) = 0;
  /// Calls back for every blob key with its size, in key order, until false. Where the medium lost some, all others are
  /// called back for, and the answer is corrupt then.
  virtual Status list_blobs(const std::function<bool(std::string_view key, std::uint64_t bytes)>& each) const = 0;
  /// Gives the space of erased blobs back to the medium. Damage of what nobody needs is no error.
  virtual Status reclaim() = 0;
  /// What the last reclaim() had to leave, and why; a line each.
  virtual std::vector<std::string> left_by_reclaim() const { return {}; }

  /// All of the batch or nothing; durable on return.
  virtual Status apply(const Batch& batch) = 0;
  virtual Result<std::string> get(std::string_view key) const = 0;
  /// Records whose key starts with `prefix`, in key order (bytes, unsigned), until the callback says false. The
  /// callback may call get(). Where the medium lost some, all others are called back for, and the answer is corrupt
  /// then.
  virtual Status scan(std::string_view prefix,
                      const std::function<bool(std::string_view key, std::string_view value)>& each) const = 0;

  /// Goes on after a failed write, once its cause is gone; no harm when nothing failed. What was acknowledged is there;
  /// the batch that failed is there whole or not at all.
  virtual Status recover() = 0;

  /// Reads all that the medium has, needed or not, and has it checked where the medium does check its own: so damage is
  /// found where no reader comes. Others find none. `on_read` is told how many bytes were read, of how many.
  virtual Result<std::vector<MediumDamage>> find_damage(
      const std::function<void(std::uint64_t done, std::uint64_t total)>& on_read) const {
    static_cast<void>(on_read);
    return std::vector<MediumDamage>();
  }

  /// What it takes on the medium, as it accounts for that.
  virtual Result<DiskUse> disk_use() const = 0;
};

std::unique_ptr<Backend> make_memory_backend();
struct MemoryOptions {
  /// Room for blobs that is allocated and touched now, so that no put waits for the kernel to clear pages. Blobs that
  /// it has no room for are kept elsewhere.
  std::uint64_t touched_bytes = 0;
};
/// out_of_space when there is not so much memory.
Result<std::unique_ptr<Backend>> make_memory_backend(const MemoryOptions& options);

struct RocksOptions {
  std::string folder;
  /// Makes the folder, and a repository in it, when there is none.
  bool create = true;
  /// Opens beside the process that owns the folder: what was durable by now, unchanging.
  bool read_only = false;
};
/// unavailable when another process owns the folder (and read_only was not asked); not_found when it holds no
/// repository and `create` is false; failed_precondition when it is full of something else.
Result<std::unique_ptr<Backend>> open_rocks_backend(const RocksOptions& options);

struct RadosOptions {
  std::string pool;
  std::string repository;  ///< The namespace within the pool.
  std::string user;        ///< Of Ceph, without "client."; empty: admin.
  std::string conf_file;   ///< Empty: CEPH_CONF, or where Ceph looks for it.
  /// Makes the repository when there is none. The pool must be there.
  bool create = true;
  /// Opens beside the process that owns it. What that one changes meanwhile may be missed, and what it erases be gone.
  bool read_only = false;
};
/// A repository in a pool of Ceph's RADOS: as durable as the pool's replication. librados is loaded when this is
/// called. Errors: unsupported in a build without it; unavailable when there is no such library or cluster, it does not
/// answer within seconds, or another process owns the repository (a killed owner's claim ends after 15 s); not_found
/// when there is no such pool, or no repository and `create` is false.
Result<std::unique_ptr<Backend>> open_rados_backend(const RadosOptions& options);

/// "rados://[USER@]POOL/REPOSITORY[?conf=FILE]". invalid_argument says what is wrong with it.
bool is_rados_address(std::string_view place);
Result<RadosOptions> parse_rados_address(std::string_view text);

}  // namespace freshet
