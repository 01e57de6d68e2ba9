// SPDX-License-Identifier: Apache-2.0
/// A real process, killed while it puts versions into a bucket of a real server: what it acknowledged is there, whole,
/// and nothing is half there.

#include <gtest/gtest.h>

#include <random>

#include "repo/bucket/bucket_backend.h"
#include "repo/s3/s3_store.h"
#include "tests/fault/crash_writer.h"
#include "tests/repo/s3/shared_seaweed.h"
#include "tests/support/child_process.h"
#include "tests/support/this_build.h"

namespace freshet {
namespace {

TEST(SeaweedCrash, WhatAKilledWriterAcknowledgedIsThere) {
  if (!seaweed().why_not().empty()) GTEST_SKIP() << seaweed().why_not();
  constexpr int kRounds = 2;
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const S3Address place = a_new_place();
  std::vector<std::string> words = {"/usr/bin/env"};
  for (const auto& [name, value] : variables_of(SeaweedServer::owner())) words.push_back(name + "=" + value);
  words.push_back(test::built(FRESHET_CRASH_WRITER));
  words.push_back("s3://" + place.bucket + "/" + place.prefix + "?endpoint=" + place.endpoint);
  VersionNumber acknowledged = 0;
  for (int round = 0; round < kRounds; ++round) {
    ChildProcess writer(words);
    ASSERT_EQ(writer.line(), "ready");
    const auto stop_after = acknowledged + 1 + random() % 6;
    while (acknowledged < stop_after) {
      const auto line = writer.line();
      ASSERT_TRUE(line);
      acknowledged = std::stoull(*line);
    }
    // It is in the middle of a put now, or between two.
    random.discard(random() % 3'000'000);
    ASSERT_TRUE(WIFSIGNALED(writer.end(SIGKILL)));
    while (const auto line = writer.line()) acknowledged = std::stoull(*line);

    Result<std::unique_ptr<ObjectStore>> store = open_s3_store(place, {}, kOwnerKeys);
    ASSERT_TRUE(store) << store.error().message();
    auto backend = open_bucket_backend(std::move(*store), {});
    ASSERT_TRUE(backend) << backend.error().message();
    const auto repository = open_or_die(std::move(*backend));
    const VersionNumber newest = repository->latest("crash").value_or(0);
    EXPECT_GE(newest, acknowledged);
    EXPECT_LE(newest, acknowledged + 1);  // One whose acknowledgement was not written any more.
    for (VersionNumber number = 1; number <= newest; ++number) {
      const auto bytes = read_all(*repository, {.model = "crash", .number = number});
      ASSERT_TRUE(bytes) << bytes.error().message();
      EXPECT_EQ(*bytes, crash_version(number).bytes);
    }
    const auto report = repository->verify(std::nullopt, {});
    ASSERT_TRUE(report);
    EXPECT_TRUE(report->corrupt.empty());
    acknowledged = newest;
  }
}

}  // namespace
}  // namespace freshet
