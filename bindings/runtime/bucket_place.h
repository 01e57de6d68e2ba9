// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Opens a place in an object store: a bucket, or a pool of Ceph. Of the processes that change it, one owns it, and the
/// others go through the owner. A reader needs nobody: it reads beside the owner.

#include <memory>
#include <string>

#include "bindings/runtime/repository_folder.h"
#include "core/base/result.h"
#include "repo/bucket/bucket_backend.h"
#include "repo/serve/served_owner.h"

namespace freshet {

/// "s3://…" or "rados://…".
bool is_store_place(const std::string& place);

/// One of the two.
struct OpenedBucket {
  std::unique_ptr<Backend> backend;     ///< This process owns the repository, or reads it.
  std::unique_ptr<Repository> through;  ///< The owner.
};
/// Errors of BucketMember; failed_precondition: keys are missing, or are not the owner's; unavailable: the owner does
/// not answer this process, but lives.
Result<OpenedBucket> open_bucket(const std::string& place, RepositoryAccess access, const SecurityOptions& security);

/// A member that others find at `self`; empty: they cannot go through it.
Result<std::unique_ptr<BucketMember>> join_bucket(const std::string& place, const ServedOwner& self,
                                                  RepositoryAccess access);
/// The owner as the member knows it; without an address if there is none that clients can reach.
ServedOwner served_owner(const BucketMember& member);

}  // namespace freshet
