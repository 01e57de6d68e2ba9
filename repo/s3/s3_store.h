// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Objects in a bucket that is spoken to by S3: of AWS, of Ceph's gateway, of MinIO, of SeaweedFS.
///
/// Requests name the bucket in the path, have Signature Version 4, and never use multipart uploads. Credentials come
/// from the environment (credentials.h). An upload carries its CRC-32C in the signed header x-amz-checksum-crc32c.

#include <cstddef>
#include <memory>

#include "core/base/env.h"
#include "core/base/result.h"
#include "repo/object_store/object_store.h"
#include "repo/s3/address.h"

namespace freshet {

struct S3Options {
  /// So many objects of more than 1 MiB are on their way at a time; calls beyond wait for their turn. The address may
  /// name another number.
  std::size_t connections_max = 8;
};

/// Asks no server: the first call does. Errors:
///   unsupported: a build without libcurl or expat; credentials of a kind that Freshet does not know (web identity).
///   unavailable: this machine has no libcurl.
///   failed_precondition: there are no credentials.
///   invalid_argument: a bad variable of the environment.
/// `env` must outlive the store.
Result<std::unique_ptr<ObjectStore>> open_s3_store(const S3Address& address, const S3Options& options = {},
                                                   const Env& env = system_env());

/// Sends signed requests of S3 stores. unsupported, unavailable: as above.
Result<std::unique_ptr<SignedObjects>> open_s3_signed_objects(const S3Options& options = {},
                                                              const Env& env = system_env());

}  // namespace freshet
