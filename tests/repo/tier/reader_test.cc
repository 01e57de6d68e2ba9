// SPDX-License-Identifier: Apache-2.0
// The reader as a guest: what it leans on, and the parts that it shares with the keeper.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <random>
#include <set>
#include <sstream>

#include "repo/tier/board.h"
#include "repo/tier/config.h"
#include "repo/tier/copy_name.h"

namespace freshet::tier {
namespace {

std::string output_of(const std::string& command) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "r"), ::pclose);
  std::string text;
  std::array<char, 4096> bytes;
  while (const std::size_t got = std::fread(bytes.data(), 1, bytes.size(), pipe.get())) text.append(bytes.data(), got);
  return text;
}

TEST(Reader, LeansOnTheCLibraryAloneAndOnLittleOfIt) {
  const std::set<std::string> allowed = {"__errno_location", "__cxa_finalize", "getenv",     "dlsym",  "fdopen",
                                         "memcmp",           "__pread64",      "__chk_fail", "memcpy", "memset",
                                         "memmove",          "strcmp",         "strlen"};
  const std::string needed = output_of("readelf -d '" FRESHET_TIER_READER "' | grep NEEDED");
  EXPECT_NE(needed.find("libc.so.6"), std::string::npos) << needed;
  EXPECT_EQ(std::count(needed.begin(), needed.end(), '\n'), 1) << needed;
  std::istringstream lines(output_of("nm -D --undefined-only '" FRESHET_TIER_READER "'"));
  int imports = 0;
  for (std::string kind, name; lines >> kind >> name;) {
    if (kind == "w") continue;  // What the compiler's start code looks for, and does without.
    EXPECT_EQ(kind, "U");
    EXPECT_TRUE(allowed.contains(name.substr(0, name.find('@')))) << name;
    ++imports;
  }
  EXPECT_GT(imports, 3);
}

TEST(Reader, RunsNothingWhenItIsLoaded) {
  // The compiler's own start code has one pointer there.
  const std::string sections = output_of("readelf -SW '" FRESHET_TIER_READER "'");
  std::istringstream lines(sections);
  bool found = false;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line.substr(std::min(line.find(']'), line.size())));
    std::string close, name, type, address, offset, size;
    if (!(words >> close >> name >> type >> address >> offset >> size) || name != ".init_array") continue;
    found = true;
    EXPECT_LE(std::stoul(size, nullptr, 16), 8U) << line;
  }
  EXPECT_TRUE(found) << sections;
  EXPECT_EQ(output_of("nm '" FRESHET_TIER_READER "' | grep _GLOBAL__sub_I"), "");
}

/// Names of a library, without versions.
std::set<std::string> names_of(const std::string& library) {
  std::set<std::string> names;
  std::istringstream lines(output_of("nm -D --defined-only '" + library + "' | grep -v GLIBC_PRIVATE"));
  for (std::string address, kind, name; lines >> address >> kind >> name;) names.insert(name.substr(0, name.find('@')));
  return names;
}

TEST(Reader, HasEverySpellingOfTheCLibrary) {
  const std::string library = output_of(
      "readelf -d /proc/self/exe > /dev/null; ldconfig -p | awk '/libc.so.6/ { printf "
      "\"%s\", $NF; exit }'");
  const std::set<std::string> theirs = names_of(library);
  const std::set<std::string> ours = names_of(FRESHET_TIER_READER);
  if (!theirs.contains("openat")) GTEST_SKIP() << "no C library is found: " << library;
  const std::set<std::string> stems = {
      "open",      "openat",       "fopen",   "freopen", "pread",    "preadv",   "preadv2",   "dup",
      "dup2",      "dup3",         "fcntl",   "flock",   "lockf",    "fstat",    "fxstat",    "statx",
      "fstatat",   "fxstatat",     "fchmod",  "fchown",  "futimens", "futimes",  "fgetxattr", "flistxattr",
      "fsetxattr", "fremovexattr", "fexecve", "setuid",  "seteuid",  "setreuid", "setresuid"};
  // The reader itself reads by that one, so that a thread in it can be cancelled.
  const std::set<std::string> spared = {"__pread64"};
  int spellings = 0;
  for (const std::string& name : theirs) {
    std::string stem = name;
    for (const char* before : {"_IO_", "__"}) {
      if (stem.starts_with(before)) stem.erase(0, std::string(before).size());
    }
    for (const char* after : {"_chk", "_2"}) {
      if (stem.ends_with(after)) stem.erase(stem.size() - std::string(after).size());
    }
    if (const auto wide = stem.find("64"); wide != std::string::npos) stem.erase(wide, 2);
    if (!stems.contains(stem) || spared.contains(name)) continue;
    ++spellings;
    EXPECT_TRUE(ours.contains(name)) << name;
  }
  EXPECT_GT(spellings, 30);
}

TEST(CopyName, IsReadBackAsItWasWritten) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int i = 0; i < 1000; ++i) {
    const Identity identity{.source = static_cast<std::uint32_t>(random() % kSourcesMax),
                            .inode = random(),
                            .size = random(),
                            .mtime = static_cast<std::int64_t>(random()),
                            .ctime = static_cast<std::int64_t>(random()),
                            .mtime_ns = static_cast<std::uint32_t>(random()),
                            .ctime_ns = static_cast<std::uint32_t>(random())};
    char path[kCopyPathBytes + 1] = {};
    ASSERT_EQ(put_copy_path(path, identity), path + kCopyPathBytes);
    Identity back;
    ASSERT_TRUE(take_name(path + 3, back));
    ASSERT_EQ(back, identity);
    path[3 + random() % kNameBytes] = 'g';
    EXPECT_FALSE(take_name(path + 3, back));
  }
}

TEST(Board, BelowASourceIsBelowNoNeighbourOfIt) {
  const auto board = std::make_unique<Board>();
  board->source_count = 1;
  std::string("/data/set").copy(board->sources[0].path, kPathRoom);
  const auto below = [&](const std::string& path) { return is_below_source(*board, path.data(), path.size()); };
  EXPECT_TRUE(below("/data/set/a"));
  EXPECT_FALSE(below("/data/set"));
  EXPECT_FALSE(below("/data/settle/a"));
  EXPECT_FALSE(below("/data/se"));
  EXPECT_FALSE(below("/"));
  board->sources[0].path[1] = '\0';
  EXPECT_TRUE(below("/data"));
}

TEST(Board, CountsEachOpenOfAFile) {
  const auto board = std::make_unique<Board>();
  for (std::uint32_t nth = 1; nth <= 3; ++nth) {
    for (std::uint64_t inode = 1; inode <= 20'000; ++inode)
      ASSERT_EQ(count_file(*board, file_key(0, inode)), nth) << inode;
  }
}

TEST(Board, AHitThatIsNoneCountsAsAMissAndNoCounterFallsBelowZero) {
  const auto board = std::make_unique<Board>();
  const EpochRow& second = board->counters.epochs[1];
  std::uint32_t nth = 0;
  (void)count_open(*board, file_key(0, 7), 100, /*hit=*/false, nth);
  (void)count_open(*board, file_key(0, 7), 100, /*hit=*/true, nth);
  ASSERT_EQ(nth, 2U);
  for (const std::uint64_t times : {1U, 2U}) {
    turn_into_miss(*board, nth, 100);
    EXPECT_EQ(board->counters.hits, 0U);
    EXPECT_EQ(board->counters.hit_bytes, 0U);
    EXPECT_EQ(board->counters.misses, 1 + times);
    EXPECT_EQ(board->counters.opens, 2U);
    EXPECT_EQ(second.hits, 0U);
    EXPECT_EQ(second.hit_bytes, 0U);
    EXPECT_EQ(second.miss_bytes, 100 * times);
  }
  turn_into_miss(*board, 0, 100);  // Of a file beyond those that are counted.
  EXPECT_EQ(board->counters.misses, 4U);
}

TEST(TierSizes, AreWhatPeopleWrite) {
  EXPECT_EQ(bytes_of("100 GiB"), 107'374'182'400U);
  EXPECT_EQ(bytes_of("1.5GB"), 1'500'000'000U);
  EXPECT_EQ(bytes_of("12"), 12U);
  EXPECT_EQ(bytes_of("7 B"), 7U);
  for (const char* wrong : {"", "GiB", "-1 GB", "1 gb", "1 GB ", "nan", "inf", "1e400", "1e30 TB", "0", "0x10"}) {
    EXPECT_FALSE(bytes_of(wrong).has_value()) << wrong;
  }
}

}  // namespace
}  // namespace freshet::tier
