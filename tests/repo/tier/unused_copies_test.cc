// SPDX-License-Identifier: Apache-2.0
// evict = "unused": which copies go when a quota is full, and which never.

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "repo/tier/board_file.h"
#include "repo/tier/tier.h"
#include "tests/repo/tier/support/lab.h"
#include "tests/support/child_process.h"

namespace freshet::test {
namespace {

constexpr int kSetFiles = 3;

/// Two sets, of which the tier holds one.
class UnusedCopies : public testing::Test {
 protected:
  UnusedCopies() {
    for (int i = 0; i < kSetFiles; ++i) {
      (void)lab_.make("old/" + std::to_string(i), 1000, static_cast<unsigned>(i));
      (void)lab_.make("new/" + std::to_string(i), 1000, static_cast<unsigned>(i + 10));
    }
  }
  std::string read_all(const std::string& set) const { return "cat " + lab_.source(set) + "/* | sha256sum"; }
  /// A run that reads a set; what it asked for is copied by the end.
  void run_on(const std::string& set) const {
    EXPECT_EQ(lab_.served(read_all(set)).out, lab_.plain(read_all(set)).out);
    ASSERT_EQ(lab_.tier_command({"settle"}).code, 0);
  }
  /// How many opens of one more run come from the tier.
  int hits_of(const std::string& set) const {
    const int before = lab_.total()["hits"];
    run_on(set);
    return lab_.total()["hits"].get<int>() - before;
  }

  const TierLab lab_{"evict = \"unused\"", 1, "3500 B"};
};

TEST_F(UnusedCopies, GoWhenThreeRunsDidNotOpenThem) {
  run_on("old");
  ASSERT_EQ(lab_.copies().size(), 3U);
  run_on("new");
  run_on("new");
  EXPECT_EQ(lab_.total()["evicted_files"], 0);
  EXPECT_EQ(lab_.total()["copied_files"], kSetFiles);
  run_on("new");
  EXPECT_EQ(lab_.total()["evicted_files"], kSetFiles);
  EXPECT_EQ(lab_.total()["copied_files"], 2 * kSetFiles);
  EXPECT_EQ(hits_of("new"), kSetFiles);
  EXPECT_EQ(hits_of("old"), 0);
  EXPECT_EQ(lab_.copies().size(), 3U);
}

TEST_F(UnusedCopies, AreRememberedByTheTiersWhenTheHostForgets) {
  run_on("old");
  run_on("new");
  run_on("new");
  ASSERT_EQ(lab_.tier_command({"stop"}).code, 0);
  // Shared memory is empty after a restart of the host.
  std::filesystem::path board;
  for (const auto& entry :
       std::filesystem::directory_iterator("/dev/shm/freshet-tier-" + std::to_string(::geteuid()))) {
    if (!entry.is_regular_file()) continue;  // A pipe for requests, of a keeper that was killed: an open of it waits.
    std::ifstream in(entry.path(), std::ios::binary);
    std::string head(8192, '\0');
    in.read(head.data(), static_cast<std::streamsize>(head.size()));
    if (head.find(lab_.config()) != std::string::npos) board = entry.path();
  }
  ASSERT_TRUE(std::filesystem::remove(board));
  run_on("new");
  EXPECT_EQ(lab_.total()["evicted_files"], kSetFiles);
  EXPECT_EQ(hits_of("new"), kSetFiles);
}

TEST_F(UnusedCopies, AreNoneWhileARunThatOpenedThemGoesOn) {
  const std::string other = "LD_PRELOAD= '" FRESHET_PROGRAM "' tier ";
  std::string command = read_all("old") + "; " + other + "settle; ";
  for (int i = 0; i < 5; ++i)
    command += other + "run -- cat " + lab_.source("new") + "/* > /dev/null; " + other + "settle; ";
  EXPECT_EQ(lab_.served(command + read_all("old")).out, lab_.plain(read_all("old") + "; " + read_all("old")).out);
  EXPECT_EQ(lab_.total()["evicted_files"], 0);
  EXPECT_EQ(lab_.total()["hits"], kSetFiles);
}

TEST_F(UnusedCopies, AreNoneWithinASetThatDoesNotFit) {
  for (int i = 0; i < kSetFiles; ++i) (void)lab_.make("old/more" + std::to_string(i), 1000, static_cast<unsigned>(i));
  run_on("old");
  for (int round = 0; round < 5; ++round) EXPECT_EQ(hits_of("old"), kSetFiles) << round;
  EXPECT_EQ(lab_.total()["evicted_files"], 0);
}

TEST_F(UnusedCopies, StayReadableForWhoHasThemOpen) {
  run_on("old");
  std::ofstream(lab_.path("hold.py"))
      << "import os, sys\n"
         "held = [open(path, 'rb') for path in sys.argv[2:]]\n"
         "print([os.readlink('/proc/self/fd/%d' % one.fileno()).startswith(sys.argv[1]) for one in held], flush=True)\n"
         "sys.stdin.read()\n"
         "print([os.readlink('/proc/self/fd/%d' % one.fileno()).endswith('(deleted)') for one in held])\n"
         "print([one.read() == open(path, 'rb').read() for one, path in zip(held, sys.argv[2:])])\n"
         "print([os.fstat(one.fileno()).st_ino == os.stat(path).st_ino for one, path in zip(held, sys.argv[2:])])\n";
  std::string command = "export FRESHET_TIER='" + lab_.config() + "'; mkfifo '" + lab_.path("go") +
                        "'; LD_PRELOAD=" FRESHET_TIER_READER " python3 " + lab_.path("hold.py") + " " + lab_.tier() +
                        " " + lab_.source("old") + "/* < '" + lab_.path("go") + "' > '" + lab_.path("said") +
                        "' & exec 9> '" + lab_.path("go") + "'; until [ -s '" + lab_.path("said") + "' ]; do :; done; ";
  const std::string other = "'" FRESHET_PROGRAM "' tier ";
  for (int i = 0; i < 3; ++i)
    command += other + "run -- cat " + lab_.source("new") + "/* > /dev/null; " + other + "settle; ";
  command += "exec 9>&-; wait; cat '" + lab_.path("said") + "'";
  const std::string all = "[True, True, True]\n";
  EXPECT_EQ(lab_.plain(command).out, all + all + all + all);
  EXPECT_EQ(lab_.total()["evicted_files"], kSetFiles);
}

TEST_F(UnusedCopies, AreThoseWhoseSourcesAreGone) {
  run_on("old");
  std::filesystem::remove(lab_.source("old/1"));
  run_on("new");
  EXPECT_EQ(lab_.total()["evicted_files"], 1);
  EXPECT_EQ(hits_of("new"), 0);  // There is room only now.
  EXPECT_EQ(hits_of("old"), kSetFiles - 1);
  EXPECT_EQ(lab_.total()["copied_files"], kSetFiles + 1);
}

TEST_F(UnusedCopies, AreNoneOfASourceThatIsNotMounted) {
  const std::string away = lab_.path("away");
  std::filesystem::create_directories(away);
  std::ofstream(lab_.config()) << "source = [\"" << lab_.source() << "\", \"" << away
                               << "\"]\nevict = \"unused\"\n[[tier]]\npath = \"" << lab_.tier()
                               << "\"\nquota = \"3500 B\"\n";
  for (int i = 0; i < kSetFiles; ++i) std::ofstream(away + "/" + std::to_string(i)) << std::string(1000, 'a');
  const std::string read_away = "cat " + away + "/* | sha256sum";
  (void)lab_.served(read_away);
  ASSERT_EQ(lab_.tier_command({"settle"}).code, 0);
  ASSERT_EQ(lab_.copies().size(), 3U);
  std::filesystem::rename(away, away + ".unmounted");
  std::filesystem::create_directories(away);
  run_on("new");
  EXPECT_EQ(lab_.total()["evicted_files"], 0);
  EXPECT_EQ(lab_.copies().size(), 3U);
}

/// Whatever number its process had, and whoever has that number by now.
TEST_F(UnusedCopies, AreCountedFromRunsWhosePlacesAreLocked) {
  const auto config = tier::read_config(lab_.config());
  ASSERT_TRUE(config) << config.error().message();
  const auto board = tier::BoardFile::open(*config);
  ASSERT_TRUE(board) << board.error().message();
  const FileDescriptor locks = tier::open_lock_file(board->path());
  const auto oldest = [&] {
    return tier::oldest_run(
        board->board(), [&](std::uint32_t place) { return tier::is_byte_locked(locks.get(), tier::kRunByte + place); });
  };
  EXPECT_EQ(oldest(), 0U);
  FileDescriptor first = tier::begin_run(*board);
  FileDescriptor second = tier::begin_run(*board);
  EXPECT_EQ(oldest(), 1U);
  first = FileDescriptor();
  EXPECT_EQ(oldest(), 2U);
  FileDescriptor third = tier::begin_run(*board);
  second = FileDescriptor();
  EXPECT_EQ(oldest(), 3U);
  third = FileDescriptor();
  EXPECT_EQ(oldest(), 3U) << "the newest";
}

}  // namespace
}  // namespace freshet::test
