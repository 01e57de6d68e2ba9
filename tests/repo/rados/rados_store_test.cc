// SPDX-License-Identifier: Apache-2.0
/// Ceph as an object store: the conformance suite of object stores, and the errors of places and keyrings.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <string>

#include "repo/rados/clock_lock.h"
#include "tests/conformance/object_store_conformance.h"
#include "tests/repo/rados/shared_cluster.h"

namespace freshet {
namespace {

using testing::HasSubstr;

class ClusterOrSkip : public testing::Environment {
 public:
  void SetUp() override {
    if (!ceph().why_not().empty()) GTEST_SKIP() << ceph().why_not();
  }
};
[[maybe_unused]] const auto* const kEnvironment = testing::AddGlobalTestEnvironment(new ClusterOrSkip);

Result<StoreUnderTest> open_rados_under_test() {
  FRESHET_ASSIGN(std::shared_ptr<RadosStore> store, open_rados_store(a_new_place_in_ceph()));
  return StoreUnderTest{.store = store, .signed_objects = store};
}

INSTANTIATE_TEST_SUITE_P(Rados, ObjectStoreConformance,
                         testing::Values(ObjectStoreCase{.name = "rados", .open = open_rados_under_test}),
                         [](const auto& instance) { return instance.param.name; });

Time in_a_minute() { return deadline_in(std::chrono::minutes(1)); }

Error error_of_opening(const RadosAddress& place) {
  const auto opened = open_rados_store(place);
  EXPECT_FALSE(opened);
  return opened ? Error(Code::cancelled, "") : opened.error();
}

TEST(RadosPlaces, AreRefusedByName) {
  RadosAddress place = a_new_place_in_ceph();
  place.pool = "no-such-pool";
  const Error no_pool = error_of_opening(place);
  EXPECT_EQ(no_pool.code(), Code::failed_precondition);
  EXPECT_THAT(no_pool.message(), HasSubstr("the cluster has no pool no-such-pool; make it first"));
  place.conf_file += ".none";
  const Error no_file = error_of_opening(place);
  EXPECT_EQ(no_file.code(), Code::failed_precondition);
  EXPECT_THAT(no_file.message(), HasSubstr(place.conf_file));
}

TEST(RadosPlaces, WrongKeyringsAreToldByName) {
  RadosAddress place = a_new_place_in_ceph();
  place.user = "stranger";
  const Error refused = error_of_opening(place);
  EXPECT_EQ(refused.code(), Code::failed_precondition);
  EXPECT_THAT(refused.message(), HasSubstr("the cluster refuses client.stranger"));
  place.user = "nobody";
  EXPECT_THAT(error_of_opening(place).message(), HasSubstr("the cluster refuses client.nobody"));
  const TemporaryFolder folder;
  std::ofstream(folder / "ceph.conf") << std::ifstream(place.conf_file).rdbuf() << "keyring = " << folder / "none\n";
  place.conf_file = folder / "ceph.conf";
  const Error no_key = error_of_opening(place);
  EXPECT_EQ(no_key.code(), Code::failed_precondition);
  EXPECT_THAT(no_key.message(), HasSubstr("there is no keyring for client.nobody"));
}

TEST(RadosPlaces, AReaderReadsOnly) {
  RadosAddress place = a_new_place_in_ceph();
  const auto owner = open_rados_store(place);
  place.user = "reader";
  const auto reader = open_rados_store(place);
  ASSERT_TRUE(owner && reader);
  ASSERT_EQ((*owner)->create("log/1", bytes_of("x", 1), in_a_minute()).outcome, Created::created);
  EXPECT_EQ((*reader)->get("log/1", 10, in_a_minute())->bytes, "x");
  EXPECT_EQ((*reader)->list("", "", 10, in_a_minute())->objects.size(), 1U);
  const Creation creation = (*reader)->create("log/2", bytes_of("x", 1), in_a_minute());
  EXPECT_EQ(creation.outcome, Created::refused);
  EXPECT_EQ(creation.error.code(), Code::failed_precondition);
  EXPECT_THAT(creation.error.message(), HasSubstr("client.reader has no right to do this in pool freshet"));
  EXPECT_EQ((*owner)->list("", "", 10, in_a_minute())->objects.size(), 1U);
}

/// Repositories of versions before the log kept their records in an object "records".
TEST(RadosPlaces, AnOlderRepositoryIsRefusedAndKept) {
  const RadosAddress place = a_new_place_in_ceph();
  {
    const auto store = open_rados_store(place);
    ASSERT_TRUE(store) << store.error().message();
    ASSERT_EQ((*store)->create("records", {}, in_a_minute()).outcome, Created::created);
  }
  const Error older = error_of_opening(place);
  EXPECT_EQ(older.code(), Code::unsupported);
  EXPECT_THAT(older.message(), HasSubstr("an older version of Freshet made this repository"));
}

TEST(RadosPlaces, AClusterThatIsDownIsToldInTime) {
  const RadosAddress place = a_new_place_in_ceph();
  const auto store = open_rados_store(place);
  ASSERT_TRUE(store);
  ceph().stop();
  const Time late = in_a_minute();
  const Error down = error_of_opening(place);
  EXPECT_LT(system_clock().now(), late);
  EXPECT_EQ(down.code(), Code::timed_out);
  EXPECT_THAT(down.message(), HasSubstr("the cluster did not answer in time"));
  const Creation creation = (*store)->create("log/1", bytes_of("x", 1), deadline_in(std::chrono::milliseconds(200)));
  EXPECT_EQ(creation.error.code(), Code::timed_out);
  ceph().go_on();
  EXPECT_NE((*store)->create("log/1", bytes_of("x", 1), in_a_minute()).outcome, Created::unsettled);
}

TEST(RadosPlaces, AMissingClusterIsToldInTime) {
  const TemporaryFolder folder;
  std::ofstream(folder / "ceph.conf") << "[global]\nmon host = v2:127.0.0.1:" << free_port()
                                      << "\nauth client required = none\n";
  RadosAddress place = a_new_place_in_ceph();
  place.conf_file = folder / "ceph.conf";
  const Time late = in_a_minute();
  const Error missing = error_of_opening(place);
  EXPECT_LT(system_clock().now(), late);
  EXPECT_EQ(missing.code(), Code::unavailable);
  EXPECT_THAT(missing.message(), HasSubstr("no monitor of the cluster answered"));
}

/// What the clock's lock answers comes from outside.
TEST(RadosClock, OtherAnswersTellNoTime) {
  const std::string one_holder("\1\1\4\0\0\0\1\0\0\0", 10);
  const std::string many_holders("\1\1\4\0\0\0\377\377\377\377", 10);
  const std::string too_long("\1\1\377\377\377\377", 6);
  for (const std::string& answer : {std::string(), std::string("\1"), one_holder, many_holders, too_long}) {
    EXPECT_EQ(rados::time_of_clock_lock(answer), std::nullopt);
  }
}

TEST(RadosAddress, IsChecked) {
  const auto good = parse_rados_address("rados://me@pool-1/search.7?conf=/etc/ceph/other.conf");
  ASSERT_TRUE(good) << good.error().message();
  EXPECT_EQ(good->user, "me");
  EXPECT_EQ(good->pool, "pool-1");
  EXPECT_EQ(good->repository, "search.7");
  EXPECT_EQ(good->conf_file, "/etc/ceph/other.conf");
  for (const char* text : {"rados://", "rados://pool", "rados://pool/", "rados:///a", "rados://p/a b", "rados://p/a/b",
                           "rados://p/a?", "rados://p/a?x=1", "rados://@p/a", "rados://p/a?conf=", "tcp://p/a"}) {
    const auto bad = parse_rados_address(text);
    ASSERT_FALSE(bad) << text;
    EXPECT_EQ(bad.error().code(), Code::invalid_argument) << text;
    EXPECT_THAT(bad.error().message(), HasSubstr(text));
  }
}

}  // namespace
}  // namespace freshet
