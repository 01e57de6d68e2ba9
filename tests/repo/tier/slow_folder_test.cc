// SPDX-License-Identifier: Apache-2.0
// The slow folder itself: what it shows, counts and refuses, and that it leaves nothing behind.

#include "tests/support/slow_folder/slow_folder.h"
#include "tests/support/eventually.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/support/temporary_folder.h"

namespace freshet::test {
namespace {

std::string bytes_at(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return in.bad() || text.bad() ? "(failed)" : text.str();
}

bool is_mounted(const std::string& path) { return bytes_at("/proc/self/mountinfo").find(path) != std::string::npos; }

class SlowFolderTest : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directory(folder_ / "backing");
    std::ofstream(folder_ / "backing/data") << std::string(300'000, 'd');
  }
  SlowFolderOptions options() const { return {.backing = folder_ / "backing", .mount = folder_ / "mount"}; }
  std::string shown(const std::string& name) const { return folder_ / ("mount/" + name); }

  TemporaryFolder folder_;
};

TEST_F(SlowFolderTest, ShowsCountsAndForgets) {
  const auto slow = SlowFolder::open(options());
  if (!slow) GTEST_SKIP() << slow.error().message();
  EXPECT_EQ(bytes_at(shown("data")), std::string(300'000, 'd'));
  SlowCounters seen = (*slow)->counters().value();
  EXPECT_EQ(seen.lookups, 1U);
  EXPECT_EQ(seen.opens, 1U);
  EXPECT_GE(seen.reads, 1U);
  EXPECT_EQ(seen.bytes, 300'000U);
  EXPECT_EQ(seen.writes, 0U);
  // The kernel has name and pages now, so an open is all that is asked.
  ASSERT_TRUE((*slow)->reset());
  EXPECT_EQ(bytes_at(shown("data")).size(), 300'000U);
  seen = (*slow)->counters().value();
  EXPECT_EQ(seen.operations(), 1U);
  EXPECT_EQ(seen.bytes, 0U);
  ASSERT_TRUE((*slow)->invalidate());
  ASSERT_TRUE((*slow)->reset());
  EXPECT_EQ(bytes_at(shown("data")).size(), 300'000U);
  EXPECT_EQ((*slow)->counters().value().bytes, 300'000U);
  // Writing.
  std::ofstream(shown("new")) << "new";
  std::filesystem::create_directory(shown("folder"));
  std::filesystem::rename(shown("new"), shown("folder/moved"));
  EXPECT_EQ(bytes_at(folder_ / "backing/folder/moved"), "new");
  EXPECT_GE((*slow)->counters().value().writes, 1U);
}

TEST_F(SlowFolderTest, UncachedAsksEachTime) {
  SlowFolderOptions uncached = options();
  uncached.cached = false;
  const auto slow = SlowFolder::open(uncached);
  if (!slow) GTEST_SKIP() << slow.error().message();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(bytes_at(shown("data")).size(), 300'000U);
  const SlowCounters seen = (*slow)->counters().value();
  EXPECT_EQ(seen.bytes, 900'000U);
  EXPECT_GE(seen.lookups, 3U);
}

TEST_F(SlowFolderTest, TakesItsTime) {
  SlowFolderOptions paced = options();
  paced.latency = std::chrono::milliseconds(5);
  paced.bytes_per_second = 10e6;
  const auto slow = SlowFolder::open(paced);
  if (!slow) GTEST_SKIP() << slow.error().message();
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(bytes_at(shown("data")).size(), 300'000U);
  // A lookup, an open, a read, and 300,000 bytes at 10 MB/s: never less, however fast the machine.
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(45));
}

TEST_F(SlowFolderTest, FailsOnRequest) {
  const auto slow = SlowFolder::open(options());
  if (!slow) GTEST_SKIP() << slow.error().message();
  const auto error_of_open = [&] {
    errno = 0;
    std::ifstream in(shown("data"));
    return in.is_open() ? 0 : errno;
  };
  ASSERT_TRUE((*slow)->fail_on("open", EACCES, "data", 1));
  EXPECT_EQ(error_of_open(), 0);
  EXPECT_EQ(error_of_open(), EACCES);
  ASSERT_TRUE((*slow)->heal());
  EXPECT_EQ(error_of_open(), 0);
  ASSERT_TRUE((*slow)->cut("data", 100));
  EXPECT_EQ(bytes_at(shown("data")).size(), 100U);
  ASSERT_TRUE((*slow)->heal());
  ASSERT_TRUE((*slow)->invalidate());
  ASSERT_TRUE((*slow)->fail_on("write", ENOSPC, "*"));
  std::ofstream full(shown("full"));
  full << "x" << std::flush;
  EXPECT_FALSE(full);
  EXPECT_FALSE((*slow)->fail_on("read", 0, "data").has_value());
}

TEST_F(SlowFolderTest, LeavesNoMountWhateverEnds) {
  {
    const auto slow = SlowFolder::open(options());
    if (!slow) GTEST_SKIP() << slow.error().message();
    EXPECT_TRUE(is_mounted(shown("").substr(0, shown("").size() - 1)));
  }
  EXPECT_FALSE(is_mounted(folder_ / "mount"));
  // Its process.
  {
    const auto slow = SlowFolder::open(options());
    ASSERT_TRUE(slow.has_value());
    ::kill((*slow)->pid(), SIGKILL);
    EXPECT_FALSE((*slow)->reset().has_value());
  }
  EXPECT_TRUE(came_true([&] { return !is_mounted(folder_ / "mount"); }));
}

}  // namespace
}  // namespace freshet::test
