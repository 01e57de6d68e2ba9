// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A repository in an object store: records and the places of blobs are values of a log (repo/log/PROTOCOL.md), bytes
/// are objects. A commit is the creation of the log's next record.

#include <memory>

#include "core/base/result.h"
#include "repo/backend/backend.h"
#include "repo/log/log_options.h"
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
/// Once another process owns the repository, reads and writes answer unavailable, with its address. An open Repository
/// has names in its memory, and answers them until its next read of a record, or write.
///
/// Ends within 30 s. Errors:
///   not_found: there is no repository, and `create` is false or `read_only` is true.
///   unavailable: another process owns it and lives; its address is told.
///   unsupported: creations do not exclude each other in this store; the log has another format.
///   Errors of the store.
Result<std::unique_ptr<Backend>> open_bucket_backend(std::shared_ptr<ObjectStore> store, const BucketOptions& options);

}  // namespace freshet
