// SPDX-License-Identifier: Apache-2.0
// The tiers for C++ programs that ask for a path.

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "repo/tier/board_file.h"
#include "repo/tier/tier.h"
#include "tests/repo/tier/support/lab.h"

namespace freshet::test {
namespace {

TEST(ServedPaths, AreTheCopysWhileItIsOfTheFileAsItIs) {
  const TierLab lab;
  const std::string file = lab.make("folder/data", 5000);
  std::ofstream(lab.path("outside")) << "outside";
  std::filesystem::create_symlink(file, lab.path("link"));
  const auto config = tier::read_config(lab.config());
  ASSERT_TRUE(config) << config.error().message();
  const auto paths = tier::ServedPaths::open(*config);
  ASSERT_TRUE(paths) << paths.error().message();
  EXPECT_EQ(paths->place_of(file), file);
  lab.fill();
  ASSERT_EQ(lab.copies().size(), 1U);
  EXPECT_EQ(paths->place_of(file), lab.copies()[0]);
  EXPECT_EQ(paths->place_of(lab.path("link")), lab.copies()[0]);
  for (const std::string& other : {lab.path("outside"), lab.source(), lab.source("absent"), std::string()}) {
    EXPECT_EQ(paths->place_of(other), other);
  }
  EXPECT_EQ(lab.total()["hits"], 2);
  EXPECT_EQ(lab.total()["misses"], 1);
  std::ofstream(file, std::ios::app) << "more";
  EXPECT_EQ(paths->place_of(file), file);
}

TEST(ServedPaths, TellTheKeeperOfOpensAsTheReaderDoes) {
  const TierLab lab;
  const std::string file = lab.make("data", 5000);
  const auto config = tier::read_config(lab.config());
  ASSERT_TRUE(config) << config.error().message();
  const auto paths = tier::ServedPaths::open(*config);
  ASSERT_TRUE(paths) << paths.error().message();
  auto file_of_board = tier::BoardFile::open(*config);
  ASSERT_TRUE(file_of_board) << file_of_board.error().message();
  tier::Board& board = file_of_board->board();
  // A keeper without room sleeps on this word until somebody opens a file.
  tier::store(board.awaits_open, std::uint32_t{1});
  (void)paths->place_of(file);
  EXPECT_EQ(tier::load(board.awaits_open), 0U);
  // A file that fits nowhere is not copied. The keeper knows all the same that room is wanted.
  EXPECT_EQ(tier::load(board.wants_room), 0U);
  tier::store(board.room_bytes, std::uint64_t{100});
  (void)paths->place_of(file);
  EXPECT_EQ(tier::load(board.wants_room), 1U);
}

TEST(ServedPaths, AreThoseOfFilesThatAreImported) {
  const TierLab lab;
  const std::string header = R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  const std::uint64_t bytes = header.size();
  std::ofstream(lab.source("net.safetensors"), std::ios::binary)
      << std::string(reinterpret_cast<const char*>(&bytes), 8) << header << std::string(8, '\0');
  lab.fill();
  const auto import = [&](const std::string& repository) {
    return lab.run({FRESHET_PROGRAM, "repo", "import", lab.source("net.safetensors"), "--repo", lab.path(repository)});
  };
  const Ran first = import("first");
  EXPECT_EQ(first.code, 0) << first.err;
  EXPECT_EQ(lab.total()["hits"], 1);
  // A copy that cannot be read does no harm.
  ASSERT_EQ(lab.tier_command({"stop"}).code, 0);
  const std::string copy = lab.copies()[0];
  const auto time = std::filesystem::last_write_time(copy);
  std::filesystem::permissions(copy, std::filesystem::perms::owner_all);
  std::ofstream(copy) << std::string(8 + header.size() + 8, 'x');
  std::filesystem::last_write_time(copy, time);
  std::filesystem::permissions(copy, std::filesystem::perms::owner_read);
  const Ran second = import("second");
  EXPECT_EQ(second.code, 0) << second.err;
  EXPECT_EQ(lab.total()["hits"], 2);
}

}  // namespace
}  // namespace freshet::test
