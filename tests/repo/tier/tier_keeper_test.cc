// SPDX-License-Identifier: Apache-2.0
// The keeper beside programs: requests while it is stopped, waits for it, what it finds by itself.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>

#include "tests/repo/tier/support/lab.h"
#include "tests/support/child_process.h"
#include "tests/support/eventually.h"

namespace freshet::test {
namespace {

std::string tier_state(const TierLab& lab) {
  const Ran said = lab.tier_command({"stat", "--json"});
  return nlohmann::json::parse(said.out.substr(0, said.out.find('\n')))["state"];
}

/// A keeper in the foreground, which is up.
std::unique_ptr<ChildProcess> keeper_of(const TierLab& lab) {
  auto keeper = std::make_unique<ChildProcess>(
      std::vector<std::string>{FRESHET_PROGRAM, "tier", "keep", "--config", lab.config()});
  EXPECT_TRUE(came_true([&] { return lab.total()["keeper_pid"].is_number(); }));
  return keeper;
}

/// Python with the reader in it, and no keeper of its own.
std::string with_reader(const std::string& program) {
  return "LD_PRELOAD='" FRESHET_TIER_READER "' python3 -c '" + program + "'";
}

TEST(TierKeeper, ThatIsStoppedGetsEveryRequestWhenItGoesOn) {
  constexpr int kFiles = 500;
  const TierLab lab;
  for (int i = 0; i < kFiles; ++i) (void)lab.make("set/" + std::to_string(i), 100, static_cast<unsigned>(i));
  const auto keeper = keeper_of(lab);
  keeper->stop();
  const Ran ran = lab.plain(with_reader("import os\nfor name in os.listdir(\"" + lab.source("set") + "\"): open(\"" +
                                        lab.source("set") + "/\" + name, \"rb\").read()"));
  EXPECT_EQ(ran.code, 0) << ran.err;
  keeper->go_on();
  ASSERT_EQ(lab.tier_command({"settle"}).code, 0);
  EXPECT_EQ(lab.total()["copied_files"], kFiles);
  EXPECT_EQ(lab.total()["lost_requests"], 0);
}

TEST(TierKeeper, ThatIsStoppedForLongLosesRequestsAndTheyAreCounted) {
  const TierLab lab;
  const std::string file = lab.make(std::string(250, 'n'), 100);
  const auto keeper = keeper_of(lab);
  keeper->stop();
  // Each open asks; the pipe has room for a mebibyte.
  const std::string read =
      with_reader("for i in range(6000): assert len(open(\"" + file + "\", \"rb\").read()) == 100");
  const Ran ran = lab.plain(read);
  EXPECT_EQ(ran.code, 0) << ran.err;
  keeper->go_on();
  ASSERT_EQ(lab.tier_command({"settle"}).code, 0);
  const auto total = lab.total();
  EXPECT_GT(total["lost_requests"], 0);
  EXPECT_LT(total["lost_requests"], 5000);
  EXPECT_EQ(total["copied_files"], 1);
}

TEST(TierKeeper, ThatDoesNotAnswerIsWaitedForAsLongAsTheConfigSays) {
  const TierLab lab("first_open = \"wait\"\nwait_s = 1");
  const std::string file = lab.make("data", 5000);
  const auto keeper = keeper_of(lab);
  keeper->stop();
  EXPECT_EQ(lab.tier_command({"settle", "--timeout", "0.1"}).code, 5);
  EXPECT_EQ(lab.tier_command({"settle", "--timeout", "0"}).code, 5);
  const Ran ran = lab.plain(with_reader("import time\nbegin = time.monotonic()\nprint(len(open(\"" + file +
                                        "\", \"rb\").read()), time.monotonic() - begin >= 1)"));
  EXPECT_EQ(ran.out, "5000 True\n") << ran.err;
  keeper->go_on();
  ASSERT_EQ(lab.tier_command({"settle"}).code, 0);
  EXPECT_EQ(lab.tier_command({"settle", "--timeout", "0"}).code, 0);
  EXPECT_EQ(lab.total()["misses"], 1);
}

TEST(TierKeeper, ThatDiesIsWaitedForByNobody) {
  const TierLab lab("first_open = \"wait\"");
  const std::string file = lab.make("data", 5000);
  const auto keeper = keeper_of(lab);
  keeper->stop();
  ChildProcess reader({"/usr/bin/env", "FRESHET_TIER=" + lab.config(), "LD_PRELOAD=" FRESHET_TIER_READER, "python3",
                       "-c", "import sys\nprint('opens', flush=True)\nprint(len(open(sys.argv[1], 'rb').read()))",
                       file});
  EXPECT_EQ(reader.line(), "opens");
  keeper->end(SIGKILL);
  EXPECT_EQ(reader.line(), "5000");
  EXPECT_EQ(lab.total()["misses"], 1);
}

/// Python with the reader in it, which is ended after a minute.
std::string with_reader_for_a_minute(const std::string& program) { return "timeout 60 env " + with_reader(program); }

TEST(TierKeeper, ThatCannotOpenAFileIsWaitedForByNobody) {
  const TierLab lab("first_open = \"wait\"");
  const std::string file = lab.make("data", 5000);
  const auto keeper = keeper_of(lab);
  const std::string descriptors = "/proc/" + std::to_string(keeper->pid()) + "/fd/";
  rlim_t in_use = 0;
  while (std::filesystem::is_symlink(descriptors + std::to_string(in_use))) ++in_use;
  const rlimit no_more{.rlim_cur = in_use, .rlim_max = in_use};
  ASSERT_EQ(::prlimit(keeper->pid(), RLIMIT_NOFILE, &no_more, nullptr), 0) << strerror(errno);
  EXPECT_EQ(lab.plain(with_reader_for_a_minute("print(len(open(\"" + file + "\", \"rb\").read()))")).out, "5000\n");
  EXPECT_EQ(lab.total()["misses"], 1);
}

TEST(TierKeeper, MakesACopyAnewThatLostItsMode) {
  const TierLab lab("first_open = \"wait\"");
  const std::string file = lab.make("data", 5000);
  const auto keeper = keeper_of(lab);
  lab.fill();
  ASSERT_EQ(lab.copies().size(), 1U);
  std::filesystem::permissions(lab.copies()[0], std::filesystem::perms::owner_all);
  EXPECT_EQ(lab.plain(with_reader_for_a_minute("print(len(open(\"" + file + "\", \"rb\").read()))")).out, "5000\n");
  EXPECT_EQ(lab.total()["hits"], 1);
  EXPECT_EQ(std::filesystem::status(lab.copies()[0]).permissions(), std::filesystem::perms::owner_read);
}

TEST(TierKeeper, TriesATierThatIsOffAgain) {
  const TierLab lab;
  const std::string file = lab.make("data", 5000);
  std::ofstream(lab.tier()) << "no folder";
  const auto keeper = keeper_of(lab);
  EXPECT_EQ(tier_state(lab), "off");
  std::filesystem::remove(lab.tier());
  EXPECT_TRUE(came_true([&] { return tier_state(lab) == "ok"; }));
  lab.fill();
  EXPECT_EQ(lab.copies().size(), 1U);
}

/// At no instant is there nothing in the tier's place, which would be one trouble more.
void exchange_tier(const TierLab& lab, const std::string& with) {
  ASSERT_EQ(::renameat2(AT_FDCWD, with.c_str(), AT_FDCWD, lab.tier().c_str(), RENAME_EXCHANGE), 0) << strerror(errno);
}

TEST(TierKeeper, InTheForegroundSaysTroublesWhenTheyOccurOnceEach) {
  const TierLab lab;
  const std::string first = lab.make("first", 5000);
  const std::string second = lab.make("second", 5000);
  ChildProcess keeper({"/bin/sh", "-c", "exec '" FRESHET_PROGRAM "' tier keep --config \"$0\" 2>&1", lab.config()});
  ASSERT_EQ(keeper.line(), "freshet tier: keeping 1 source in 1 tier");
  const std::string head = "freshet tier: tier 1 is off until it works again, the source is read instead: ";
  const auto expect_said = [&](const char* reason) {
    const std::string said = keeper.line().value_or("");
    EXPECT_TRUE(said.starts_with(head) && said.ends_with(reason)) << said;
  };
  std::ofstream(lab.path("file")) << "no folder";
  exchange_tier(lab, lab.path("file"));
  ASSERT_EQ(lab.tier_command({"prefetch", first, second}).code, 0);
  expect_said("Not a directory");
  std::filesystem::remove(lab.tier());
  ASSERT_TRUE(came_true([&] { return tier_state(lab) == "ok"; }));
  // It fails in another way, which is said, and in that way once more.
  for (int round = 0; round < 2; ++round) {
    const std::string loop = lab.path("loop" + std::to_string(round));
    std::filesystem::create_directory_symlink(lab.tier(), loop);
    exchange_tier(lab, loop);
    ASSERT_EQ(lab.tier_command({"prefetch", first}).code, 0);
    if (round == 0) expect_said("Too many levels of symbolic links");
    ASSERT_TRUE(came_true([&] { return tier_state(lab) == "off"; }));
    std::filesystem::remove(lab.tier());
    ASSERT_TRUE(came_true([&] { return tier_state(lab) == "ok"; }));
  }
  ASSERT_EQ(lab.tier_command({"stop"}).code, 0);
  EXPECT_EQ(keeper.line(), std::nullopt);
  EXPECT_EQ(keeper.wait(), 0);
}

/// Changes a byte, and puts the file's times back.
void flip_a_byte(const std::string& copy) {
  const auto before = std::filesystem::last_write_time(copy);
  std::filesystem::permissions(copy, std::filesystem::perms::owner_all);
  std::fstream(copy, std::ios::in | std::ios::out).put('x').put('y').put('z');
  std::filesystem::permissions(copy, std::filesystem::perms::owner_read);
  std::filesystem::last_write_time(copy, before);
}

TEST(TierKeeper, FindsByItselfWhatTheDiskChanged) {
  const TierLab lab;
  const std::string file = lab.make("data", 5000);
  (void)lab.make("other", 5000, 2);
  lab.fill();
  ASSERT_EQ(lab.tier_command({"stop"}).code, 0);
  ASSERT_EQ(lab.copies().size(), 2U);
  flip_a_byte(lab.copies()[0]);
  const auto keeper = keeper_of(lab);
  EXPECT_TRUE(came_true([&] { return lab.total()["corrupt"] == 1; }));
  EXPECT_EQ(lab.copies().size(), 1U);
  EXPECT_EQ(lab.tier_command({"verify"}).code, 0);
  lab.fill();
  EXPECT_EQ(lab.copies().size(), 2U);
}

}  // namespace
}  // namespace freshet::test
