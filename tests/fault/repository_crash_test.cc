/// A real process, killed while it puts versions into a RocksDB repository: what it acknowledged is there, whole, and
/// nothing is half there.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/fault/crash_writer.h"
#include "tests/support/child_process.h"
#include "tests/support/temporary_folder.h"

namespace freshet {
namespace {

std::unique_ptr<Repository> open_rocks(const std::string& folder) {
  auto backend = open_rocks_backend({.folder = folder});
  EXPECT_TRUE(backend) << backend.error().message();
  return backend ? open_or_die(std::move(*backend)) : nullptr;
}

std::size_t blob_count(const std::string& folder) {
  const auto backend = open_rocks_backend({.folder = folder});
  std::size_t count = 0;
  EXPECT_TRUE((*backend)->list_blobs([&](std::string_view, std::uint64_t) { return ++count > 0; }));
  return count;
}

TEST(RepositoryCrash, WhatAKilledWriterAcknowledgedIsThere) {
  constexpr int kRounds = 6;
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const TemporaryFolder folder;
  const std::string store = folder / "store";
  VersionNumber checked = 0;
  for (int round = 0; round < kRounds; ++round) {
    ChildProcess writer({FRESHET_CRASH_WRITER, store});
    ASSERT_EQ(writer.line(), "ready");
    VersionNumber acknowledged = checked;
    const auto stop_after = acknowledged + random() % 8;
    while (acknowledged < stop_after) {
      const auto line = writer.line();
      ASSERT_TRUE(line);
      acknowledged = std::stoull(*line);
    }
    // It is in the middle of a put now, or between two.
    random.discard(random() % 3'000'000);
    const int status = writer.end(SIGKILL);
    ASSERT_TRUE(WIFSIGNALED(status));
    while (const auto line = writer.line()) acknowledged = std::stoull(*line);

    std::uint64_t segments = 0;
    {
      const auto repository = open_rocks(store);
      ASSERT_NE(repository, nullptr);
      const VersionNumber newest = repository->latest("crash").value_or(0);
      EXPECT_GE(newest, acknowledged);
      EXPECT_LE(newest, acknowledged + 1);  // One whose acknowledgement was not written any more.
      for (VersionNumber number = std::max<VersionNumber>(checked, 1); number <= newest; ++number) {
        const auto bytes = read_all(*repository, {.model = "crash", .number = number});
        ASSERT_TRUE(bytes) << bytes.error().message();
        EXPECT_EQ(*bytes, crash_version(number).bytes);
      }
      const auto report = repository->verify(std::nullopt, {});
      ASSERT_TRUE(report);
      EXPECT_TRUE(report->corrupt.empty());
      segments = repository->stat()->live_tensors;
      checked = newest;
    }
    EXPECT_EQ(blob_count(store), segments);
  }
  EXPECT_GT(checked, 0u);
}

TEST(RepositoryCrash, AnotherProcessOwnsTheFolder) {
  const TemporaryFolder folder;
  ChildProcess writer({FRESHET_CRASH_WRITER, folder / "store"});
  ASSERT_EQ(writer.line(), "ready");
  ASSERT_EQ(writer.line(), "1");
  ASSERT_EQ(writer.line(), "2");
  const auto refused = open_rocks_backend({.folder = folder / "store"});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::unavailable);
  EXPECT_EQ(refused.error().message(),
            "the repository " + (folder / "store") + " is in use by process " + std::to_string(writer.pid()));
  // Looking in is possible all the while, and shows whole versions.
  for (int look = 0; look < 5; ++look) {
    auto backend = open_rocks_backend({.folder = folder / "store", .read_only = true});
    ASSERT_TRUE(backend) << backend.error().message();
    const auto repository = open_or_die(std::move(*backend));
    const VersionNumber newest = repository->latest("crash").value_or(0);
    EXPECT_GE(newest, 2u);
    EXPECT_EQ(read_all(*repository, {.model = "crash", .number = newest}).value(), crash_version(newest).bytes);
    EXPECT_EQ(put(*repository, crash_version(newest + 10)).error().code(), Code::failed_precondition);
    EXPECT_EQ(repository->pin({.model = "crash"}, "me").error().code(), Code::failed_precondition);
  }
  EXPECT_TRUE(writer.line());  // It was not disturbed.
}

}  // namespace
}  // namespace freshet
