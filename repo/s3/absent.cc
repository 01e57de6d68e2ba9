// SPDX-License-Identifier: Apache-2.0
/// Answers in a build without libcurl or expat.

#include "repo/s3/s3_store.h"

namespace freshet {
namespace {

constexpr const char* kNoBuckets =
    "this build has no repositories in buckets (S3): it was built without libcurl4-openssl-dev or libexpat1-dev";

}  // namespace

Result<std::unique_ptr<ObjectStore>> open_s3_store(const S3Address&, const S3Options&, const Env&) {
  return fail(Code::unsupported, kNoBuckets);
}

Result<std::unique_ptr<SignedObjects>> open_s3_signed_objects(const S3Options&, const Env&) {
  return fail(Code::unsupported, kNoBuckets);
}

}  // namespace freshet
