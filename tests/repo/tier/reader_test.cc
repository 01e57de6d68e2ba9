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
