// SPDX-License-Identifier: Apache-2.0
/// The store in a bucket of a real server: the conformance suite of object stores, and a server's own refusals.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <utility>

#include "repo/s3/s3_store.h"
#include "tests/conformance/object_store_conformance.h"
#include "tests/repo/s3/shared_seaweed.h"
#include "tests/support/eventually.h"

namespace freshet {
namespace {

using testing::HasSubstr;

Result<StoreUnderTest> open_seaweed_store() {
  FRESHET_ASSIGN(std::unique_ptr<ObjectStore> store, open_s3_store(a_new_place(), {}, kOwnerKeys));
  FRESHET_ASSIGN(std::shared_ptr<SignedObjects> sender, open_s3_signed_objects());
  return StoreUnderTest{.store = std::move(store), .signed_objects = std::move(sender)};
}

INSTANTIATE_TEST_SUITE_P(Seaweed, ObjectStoreConformance,
                         testing::Values(ObjectStoreCase{
                             .name = "s3", .open = open_seaweed_store, .why_not = [] { return seaweed().why_not(); }}),
                         [](const auto& instance) { return instance.param.name; });

class SeaweedServed : public testing::Test {
 protected:
  void SetUp() override {
    if (!seaweed().why_not().empty()) GTEST_SKIP() << seaweed().why_not();
  }
  static Time soon() { return deadline_in(std::chrono::seconds(10)); }
  /// The error of looking into a place; it comes within ten seconds, or the call says that it was late.
  static Error error_at(const S3Address& address, const Env& env) {
    const auto store = open_s3_store(address, {}, env);
    if (!store) return store.error();
    const auto page = (*store)->list("", "", 1, soon());
    EXPECT_FALSE(page);
    return page ? Error(Code::cancelled, "") : page.error();
  }
};

TEST_F(SeaweedServed, RefusesWrongKeysAndWrongPlacesByName) {
  const VariableEnv unknown = VariableEnv::with({{"AWS_ACCESS_KEY_ID", "nobody"}, {"AWS_SECRET_ACCESS_KEY", "secret"}});
  EXPECT_THAT(error_at(a_new_place(), unknown).message(), HasSubstr("does not know the access key ID"));
  const VariableEnv wrong = VariableEnv::with({{"AWS_ACCESS_KEY_ID", "owner"}, {"AWS_SECRET_ACCESS_KEY", "other"}});
  EXPECT_THAT(error_at(a_new_place(), wrong).message(),
              HasSubstr("correct AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"));
  S3Address elsewhere = a_new_place();
  elsewhere.bucket = "no-such-bucket";
  const Error error = error_at(elsewhere, kOwnerKeys);
  EXPECT_EQ(error.code(), Code::failed_precondition);
  EXPECT_THAT(error.message(), HasSubstr("there is no bucket no-such-bucket; make it first"));
}

TEST_F(SeaweedServed, AReaderReadsOnly) {
  const S3Address place = a_new_place();
  const auto owner = open_s3_store(place, {}, kOwnerKeys);
  const auto reader = open_s3_store(place, {}, kReaderKeys);
  ASSERT_TRUE(owner && reader);
  ASSERT_EQ((*owner)->create("log/1", bytes_of("x", 1), soon()).outcome, Created::created);
  EXPECT_EQ((*reader)->get("log/1", 10, soon())->bytes, "x");
  const Creation creation = (*reader)->create("log/2", bytes_of("x", 1), soon());
  EXPECT_EQ(creation.outcome, Created::refused);
  EXPECT_EQ(creation.error.code(), Code::failed_precondition);
  EXPECT_THAT(creation.error.message(), HasSubstr("have no right to do this in bucket freshet"));
}

/// What was acknowledged is there when the server comes back, and the same store object goes on.
TEST_F(SeaweedServed, AKilledServerComesBackWithItsObjects) {
  const auto store = open_s3_store(a_new_place(), {}, kOwnerKeys);
  ASSERT_TRUE(store);
  ASSERT_EQ((*store)->create("log/1", bytes_of("x", 1), soon()).outcome, Created::created);
  seaweed().kill();
  const Creation creation = (*store)->create("log/2", bytes_of("y", 1), deadline_in(std::chrono::seconds(1)));
  EXPECT_EQ(creation.outcome, Created::refused) << "the used connection had ended, and nobody took a new one";
  EXPECT_EQ(creation.error.code(), Code::unavailable) << creation.error.message();
  seaweed().start();
  ASSERT_EQ(seaweed().why_not(), "");
  Result<Object> got = fail(Code::unavailable, "");
  // The server takes requests before it knows again where its objects lie: until then, 500.
  EXPECT_TRUE(came_true([&] {
    got = (*store)->get("log/1", 10, soon());
    return got || got.error().code() != Code::unavailable;
  }));
  ASSERT_TRUE(got) << got.error().message();
  EXPECT_EQ(got->bytes, "x");
  EXPECT_EQ((*store)->get("log/2", 10, soon()).error().code(), Code::not_found) << "refused is never done";
  EXPECT_EQ((*store)->create("log/2", bytes_of("y", 1), soon()).outcome, Created::created);
}

}  // namespace
}  // namespace freshet
