// SPDX-License-Identifier: Apache-2.0
/// A real process, killed while it puts versions into a RocksDB repository: what it acknowledged is there, whole, and
/// nothing is half there.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "core/base/format.h"
#include "tests/fault/crash_script.h"
#include "tests/fault/crash_writer.h"
#include "tests/fault/unsynced_files.h"
#include "tests/support/child_process.h"
#include "tests/support/from_environment.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/this_build.h"

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
    ChildProcess writer({test::built(FRESHET_CRASH_WRITER), store});
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

const std::uint64_t kCrashes = test::under_sanitizer() ? 6 : 18;

// Each put, retirement, collection and alias is killed at a sync, before or after, and what was not synced is lost, or
// half of it is. FRESHET_CRASHES and FRESHET_CRASH_SEED ask for more, or for the same again.
TEST(RepositoryCrash, AtAnySyncOfAnyStepWithWhatWasNotSyncedLost) {
  const std::uint64_t seed = from_environment("FRESHET_CRASH_SEED", std::random_device()());
  SCOPED_TRACE(format("seed {}", seed));
  std::mt19937_64 random(seed);
  const TemporaryFolder folder;
  const std::string store = folder / "store";
  std::uint64_t taken = 0;
  for (std::uint64_t crash = 0; crash < from_environment("FRESHET_CRASHES", kCrashes); ++crash) {
    const std::string when = crash % 2 == 0 ? "before" : "after";
    const std::uint64_t sync = 1 + crash * 5 % 9;
    SCOPED_TRACE(format("crash {}: step {} and on, {} sync {}", crash, taken, when, sync));
    UnsyncedFiles files(store);
    std::uint64_t acknowledged = taken;
    {
      ChildProcess writer({test::built(FRESHET_CRASH_WRITER), store, std::to_string(seed), std::to_string(taken),
                           folder / "journal", std::to_string(sync), when});
      ASSERT_EQ(writer.line(), "ready");
      while (const auto line = writer.line()) acknowledged = std::stoull(*line);
      ASSERT_TRUE(WIFSIGNALED(writer.end(SIGKILL)));  // It ended by itself, unless it was refused something.
    }
    files.lose(folder / "journal", static_cast<UnsyncedFiles::Fate>(crash / 2 % 3), random);

    const auto repository = open_rocks(store);
    ASSERT_NE(repository, nullptr);
    CrashScript script(seed);
    while (script.step() < acknowledged) ASSERT_TRUE(script.take(nullptr));
    const std::string unlike_before = unlike(*repository, script.state());
    if (!unlike_before.empty()) {
      ASSERT_TRUE(script.take(nullptr));  // Then it was done, and nobody heard of it.
      ASSERT_EQ(unlike(*repository, script.state()), "") << "nor is it as before: " << unlike_before;
    }
    taken = script.step();
    const auto report = repository->verify(std::nullopt, {});
    ASSERT_TRUE(report) << report.error().message();
    for (const auto& one : report->corrupt) FAIL() << to_string(one.version) << one.record << ": " << one.reason;
    if (crash % 3 != 2) continue;
    ASSERT_TRUE(repository->gc({}, {}));
    EXPECT_TRUE(repository->verify(std::nullopt, {})->unneeded.empty());
    const auto stat = repository->stat();
    EXPECT_LE(stat->disk_bytes - stat->metadata_bytes, stat->live_bytes + stat->live_bytes / 100 + (64 << 10));
    EXPECT_EQ(unlike(*repository, script.state()), "");
  }
  EXPECT_GT(taken, 0u);
}

TEST(RepositoryCrash, AnotherProcessOwnsTheFolder) {
  const TemporaryFolder folder;
  ChildProcess writer({test::built(FRESHET_CRASH_WRITER), folder / "store"});
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
