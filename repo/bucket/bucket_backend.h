// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A repository in an object store: records and the places of blobs are values of a log (repo/log/PROTOCOL.md), bytes
/// are objects. A commit is the creation of the log's next record.

#include <memory>
#include <optional>
#include <utility>

#include "core/base/result.h"
#include "repo/backend/backend.h"
#include "repo/log/log_options.h"
#include "repo/log/log_store.h"
#include "repo/object_store/object_store.h"

namespace freshet {

struct BucketOptions {
  log::LogOptions log;  ///< Address and public key of this process, and times.
  /// Begins the repository, if there is none. The bucket must exist.
  bool create = true;
  /// Asks a store without the repository whether its creations exclude each other, before the repository begins. False
  /// only for a store that was asked already.
  bool check_exclusion = true;
  /// Opens the repository beside its owner: the state at the end of open(), unchanging. Bytes that the owner erases
  /// stay readable for LogOptions::grace_s; then reads of them answer unavailable, and a new opening sees the present
  /// state.
  bool read_only = false;
};

/// A process that follows a repository's log in a bucket: it knows the owner, and may own the repository. So a standby
/// has read everything when it takes over. Any thread.
class BucketMember {
 public:
  /// Reads to the log's end. Errors as open_bucket_backend(), except that it claims nothing.
  static Result<std::unique_ptr<BucketMember>> open(std::shared_ptr<ObjectStore> store, const BucketOptions& options);

  /// The owner, as far as this member has read.
  std::optional<log::LogMember> owner() const { return log_->owner(); }
  /// This member owns the repository, as far as it has read.
  bool owns() const { return log_->role() == log::Role::owns; }
  /// unavailable: no owner, or one whom the store did not answer for so long that another process may own it by now.
  Status check_current() const { return log_->check_current(); }
  /// corrupt or unsupported: this member can go on no more.
  std::optional<Error> error() const { return log_->error(); }
  Status look(Time deadline) { return log_->look(deadline); }

  /// Owns the repository by the deadline; a repository that begins may take 2 minutes longer. At once if nobody does, 5
  /// s later if the owner does not answer. The repository has no owner any more once this object and the backend are
  /// gone. Errors of LogStore::claim(); unsupported, as open_bucket_backend() has it. One thread at a time.
  Result<std::unique_ptr<Backend>> own(Time deadline);
  /// The state of this moment, unchanging.
  std::unique_ptr<Backend> read() const;

 private:
  BucketMember(std::shared_ptr<ObjectStore> store, const BucketOptions& options)
      : store_(std::move(store)), check_exclusion_(options.check_exclusion) {}

  const std::shared_ptr<ObjectStore> store_;
  bool check_exclusion_;
  std::shared_ptr<log::LogStore> log_;
};

/// Once another process owns the repository, reads and writes answer unavailable, with its address.
///
/// Ends within 30 s; where a repository begins, within 3 minutes, since the store is asked first. Errors:
///   not_found: there is no repository, and `create` is false or `read_only` is true.
///   unavailable: another process owns it and lives; its address is told.
///   unsupported: creations do not exclude each other in this store; the log has another format.
///   Errors of the store.
Result<std::unique_ptr<Backend>> open_bucket_backend(std::shared_ptr<ObjectStore> store, const BucketOptions& options);

}  // namespace freshet
