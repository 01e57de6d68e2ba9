// SPDX-License-Identifier: Apache-2.0
/// The repository in a bucket of a real server: the conformance suite of backends.

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>

#include "repo/bucket/bucket_backend.h"
#include "repo/s3/s3_store.h"
#include "tests/conformance/backend_conformance.h"
#include "tests/repo/s3/shared_seaweed.h"
#include "tests/support/refused.h"

namespace freshet {
namespace {

/// A folder's name stands for a place of its own.
Result<std::unique_ptr<Backend>> open_in_seaweed(const std::string& folder) {
  static std::map<std::string, S3Address> places;
  const S3Address& place = places.try_emplace(folder, a_new_place()).first->second;
  FRESHET_ASSIGN(std::shared_ptr<ObjectStore> store, open_s3_store(place, {}, kOwnerKeys));
  // The suite of object stores asks this server whether creations exclude each other; it takes seconds each time.
  BucketOptions options;
  options.check_exclusion = false;
  return open_bucket_backend(std::move(store), options);
}

const BackendCase kSeaweedBucket{.name = "s3", .open = open_in_seaweed, .why_not = [] { return seaweed().why_not(); }};

INSTANTIATE_TEST_SUITE_P(SeaweedBucket, BackendConformance, testing::Values(kSeaweedBucket),
                         [](const auto& instance) { return instance.param.name; });
INSTANTIATE_TEST_SUITE_P(SeaweedBucket, DurableBackendConformance, testing::Values(kSeaweedBucket),
                         [](const auto& instance) { return instance.param.name; });

/// An owner that may not write is told so at once, and harms no reader.
TEST(SeaweedBucketRights, AReaderOpensToReadOnly) {
  if (!seaweed().why_not().empty()) GTEST_SKIP() << seaweed().why_not();
  const S3Address place = a_new_place();
  const auto open = [&](const Env& keys, bool read_only) -> Result<std::unique_ptr<Backend>> {
    FRESHET_ASSIGN(std::shared_ptr<ObjectStore> store, open_s3_store(place, {}, keys));
    BucketOptions options;
    options.read_only = read_only;
    options.check_exclusion = false;
    return open_bucket_backend(std::move(store), options);
  };
  for (const bool is_there : {false, true}) {
    EXPECT_TRUE(is_refused(open(kReaderKeys, /*read_only=*/false), Code::failed_precondition,
                           "have no right to do this in bucket freshet"));
    if (is_there) break;
    const auto owner = open(kOwnerKeys, /*read_only=*/false);
    ASSERT_TRUE(owner) << owner.error().message();
    ASSERT_TRUE((*owner)->apply({Backend::Put{"a", "1"}}));
  }
  const auto reader = open(kReaderKeys, /*read_only=*/true);
  ASSERT_TRUE(reader) << reader.error().message();
  EXPECT_EQ((*reader)->get("a").value_or("?"), "1");
}

}  // namespace
}  // namespace freshet
