// SPDX-License-Identifier: Apache-2.0
// What becomes of programs when a tier or the keeper does not work: they read the source.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "repo/tier/board_file.h"
#include "repo/tier/tier.h"
#include "tests/repo/tier/support/lab.h"
#include "tests/support/child_process.h"
#include "tests/support/eventually.h"

namespace freshet::test {
namespace {

std::string state_of(const TierLab& lab) {
  const Ran said = lab.tier_command({"stat", "--json"});
  return nlohmann::json::parse(said.out.substr(0, said.out.find('\n')))["state"];
}

TEST(TierFaults, ATierThatCannotBeMadeIsOffAndSaidOnce) {
  const TierLab lab("", 2);
  std::ofstream(lab.tier(1)) << "no folder";
  const std::string file = lab.make("data", 10'000);
  const Ran ran = lab.served("sha256sum " + file + "; sha256sum " + file);
  EXPECT_EQ(ran.out, lab.plain("sha256sum " + file + "; sha256sum " + file).out);
  EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 1) << ran.err;
  EXPECT_TRUE(ran.err.starts_with("freshet tier: tier 1 is off")) << ran.err;
  EXPECT_EQ(state_of(lab), "off");
  // The next tier takes what the first would have.
  ASSERT_EQ(lab.tier_command({"settle"}).code, 0);
  const int hits_before = lab.total()["hits"];  // The second of the two opens may have come late enough.
  EXPECT_EQ(lab.served("sha256sum " + file).out, lab.plain("sha256sum " + file).out);
  EXPECT_EQ(lab.total()["hits"], hits_before + 1);
}

TEST(TierFaults, WhatAnotherUserMayWriteToIsNoTier) {
  const TierLab lab;
  std::filesystem::create_directory(lab.tier());
  ASSERT_EQ(::chmod(lab.tier().c_str(), 0777), 0);
  const std::string file = lab.make("data", 10'000);
  const Ran ran = lab.served("sha256sum " + file);
  EXPECT_EQ(ran.out, lab.plain("sha256sum " + file).out);
  EXPECT_NE(ran.err.find("others may write"), std::string::npos) << ran.err;
}

/// Everything that looks like a copy there is somebody else's word: the reader, the supervisor, programs that ask for a
/// path and the commands leave it alone.
TEST(TierFaults, WhatAnotherUserCouldHavePutThereIsNoCopy) {
  const TierLab lab;
  const std::string file = lab.make("data", 10'000);
  lab.fill();
  ASSERT_EQ(lab.copies().size(), 1U);
  ASSERT_EQ(lab.tier_command({"stop"}).code, 0);
  const std::string copy = lab.copies()[0];
  struct stat made {};
  ASSERT_EQ(::stat(copy.c_str(), &made), 0);
  ASSERT_EQ(::chmod(copy.c_str(), 0600), 0);
  std::ofstream(copy, std::ios::in | std::ios::out) << "forged";
  const timespec times[2] = {made.st_atim, made.st_mtim};
  ASSERT_EQ(::utimensat(AT_FDCWD, copy.c_str(), times, 0), 0);
  ASSERT_EQ(::chmod(copy.c_str(), 0400), 0);
  const std::string read = "sha256sum '" + file + "'";
  const std::string preloaded = "LD_PRELOAD='" FRESHET_TIER_READER "' " + read;
  ASSERT_NE(lab.plain(preloaded).out, lab.plain(read).out) << "a copy that is this user's is believed";
  const auto config = tier::read_config(lab.config());
  ASSERT_TRUE(config) << config.error().message();
  const auto expect_source = [&](const char* why) {
    EXPECT_EQ(lab.plain(preloaded).out, lab.plain(read).out) << why;
    const auto paths = tier::ServedPaths::open(*config);
    ASSERT_TRUE(paths) << paths.error().message();
    EXPECT_EQ(paths->place_of(file), file) << why;
    // The last: it starts a keeper, which may put a copy of its own in the place.
    EXPECT_EQ(lab.tier_command({"run", "--via", "seccomp", "--", "/bin/sh", "-c", read}).out, lab.plain(read).out);
  };
  const auto expect_nothing_done = [&](const char* reason) {
    expect_source(reason);
    EXPECT_EQ(state_of(lab), "off") << reason;
    for (const char* command : {"verify", "drop"}) {
      const Ran ran = lab.tier_command({command});
      EXPECT_NE(ran.code, 0) << command;
      EXPECT_NE(ran.err.find(reason), std::string::npos) << command << ": " << ran.err;
    }
    EXPECT_TRUE(std::filesystem::exists(copy)) << reason;
  };
  ASSERT_EQ(::chmod(lab.tier().c_str(), 0720), 0);
  expect_nothing_done("others may write");
  ASSERT_EQ(::chmod(lab.tier().c_str(), 0700), 0);
  if (::geteuid() != 0) return;  // Only root may give files away.
  constexpr uid_t kSomebody = 65534;
  ASSERT_EQ(::chown(lab.tier().c_str(), kSomebody, kSomebody), 0);
  expect_nothing_done("another user");
  ASSERT_EQ(::chown(lab.tier().c_str(), 0, 0), 0);
  ASSERT_EQ(::chown(copy.c_str(), kSomebody, kSomebody), 0);
  ASSERT_EQ(::utimensat(AT_FDCWD, copy.c_str(), times, 0), 0);
  expect_source("a copy of another user");
}

/// In each child one way to become another user, then a look at what of the former user's board is still mapped.
TEST(TierFaults, AProcessThatGaveUpRootCannotWriteToRootsBoard) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const TierLab lab;
  const std::string file = lab.make("data", 10'000);
  lab.fill();
  std::ofstream(lab.path("give_up.py"))
      << "import ctypes, os, sys, threading\n"
         "c = ctypes.CDLL(None, use_errno=True)\n"
         "maps = open('/proc/self/maps')\n"  // Who gave up root may not open it any more.
         "def is_mapped():\n"
         "    maps.seek(0)\n"
         "    return '/freshet-tier-' in maps.read()\n"
         "def read_in_vain():\n"
         "    for _ in range(300):\n"
         "        try: open(sys.argv[1]).close()\n"
         "        except OSError: pass\n"
         "def beside_others():\n"
         "    others = [threading.Thread(target=read_in_vain) for _ in range(4)]\n"
         "    for other in others: other.start()\n"
         "    os.setuid(65534)\n"
         "    for other in others: other.join()\n"
         "def by_the_kernel():\n"
         "    c.syscall(117 if os.uname().machine == 'x86_64' else 147, 65534, 65534, 65534)\n"  // setresuid
         "    open('/dev/null').close()\n"
         "ways = [lambda: None, lambda: os.setuid(65534), lambda: os.seteuid(65534), lambda: os.setreuid(65534, "
         "65534),\n"
         "        lambda: os.setresuid(65534, 65534, 65534), by_the_kernel, beside_others]\n"
         "for way in ways:\n"
         "    child = os.fork()\n"
         "    if child == 0:\n"
         "        maps = open('/proc/self/maps')\n"
         "        open(sys.argv[1]).close()\n"
         "        before = is_mapped()\n"
         "        way()\n"
         "        after = is_mapped()\n"
         "        print(before, after, open('/dev/null').read() == '', flush=True)\n"
         "        os._exit(0)\n"
         "    if os.waitpid(child, 0)[1] != 0: print('died')\n";
  const Ran got = lab.served("python3 '" + lab.path("give_up.py") + "' '" + file + "'");
  EXPECT_EQ(got.out,
            "True True True\nTrue False True\nTrue False True\nTrue False True\nTrue False True\nTrue False True\n"
            "True False True\n")
      << got.err;
}

/// A keeper that was killed leaves its number on the board, and a later process may get that number.
TEST(TierFaults, ADeadKeepersNumberIsWaitedForByNobody) {
  const TierLab lab("first_open = \"wait\"");
  const std::string file = lab.make("data", 10'000);
  const auto config = tier::read_config(lab.config());
  ASSERT_TRUE(config) << config.error().message();
  const auto board = tier::BoardFile::open(*config);
  ASSERT_TRUE(board) << board.error().message();
  tier::store(board->board().keeper_pid, static_cast<std::uint32_t>(::getpid()));
  EXPECT_EQ(lab.plain("LD_PRELOAD='" FRESHET_TIER_READER "' sha256sum '" + file + "'").out,
            lab.plain("sha256sum '" + file + "'").out);
  EXPECT_EQ(lab.total()["keeper_pid"], nullptr);
  // One that is there is waited for: nothing but its copy is read.
  EXPECT_EQ(lab.served("sha256sum '" + file + "'").out, lab.plain("sha256sum '" + file + "'").out);
  EXPECT_EQ(lab.total()["hits"], 1);
  EXPECT_EQ(lab.total()["misses"], 1);
}

TEST(TierFaults, ATierThatGoesAwayIsMissedByNobody) {
  const TierLab lab;
  const std::string file = lab.make("data", 10'000);
  lab.fill();
  std::ofstream(lab.path("look.py"))
      << "import os, shutil, sys\n"
         "first = open(sys.argv[1], 'rb')\n"
         "while os.path.exists(sys.argv[2]): shutil.rmtree(sys.argv[2], ignore_errors=True)\n"
         "print(first.read() == open(sys.argv[1], 'rb').read())\n";
  EXPECT_EQ(lab.served("python3 " + lab.path("look.py") + " " + file + " " + lab.tier()).out, "True\n");
  // A keeper that saw it go tries it again after a while; a new one at once.
  ASSERT_EQ(lab.tier_command({"stop"}).code, 0);
  lab.fill();
  EXPECT_EQ(lab.copies().size(), 1U);
}

TEST(TierFaults, TiersThatWereMadeAnewCountAnew) {
  const TierLab lab;
  const std::string file = lab.make("data", 10'000);
  (void)lab.served("cat " + file);
  ASSERT_EQ(lab.tier_command({"settle"}).code, 0);
  ASSERT_EQ(lab.tier_command({"stop"}).code, 0);
  EXPECT_EQ(lab.total()["opens"], 1);
  std::filesystem::remove_all(lab.tier());
  (void)lab.served("cat " + file);
  EXPECT_EQ(lab.total()["opens"], 1);
}

TEST(TierFaults, TheBoardOfAConfigThatIsGoneGoes) {
  const auto count = [] {
    std::size_t boards = 0;
    const std::string folder = "/dev/shm/freshet-tier-" + std::to_string(::geteuid());
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      boards += entry.path().filename().string().size() == 16 ? 1U : 0U;
    }
    return boards;
  };
  {
    const TierLab before;
    ASSERT_EQ(before.tier_command({"stat"}).code, 0);
  }
  // Other tests may run beside this one; without any sweeping there would be ten more.
  const std::size_t before = count();
  for (int i = 0; i < 10; ++i) {
    const TierLab lab;
    ASSERT_EQ(lab.tier_command({"stat"}).code, 0);
  }
  EXPECT_LT(count(), before + 8);
}

TEST(TierFaults, TheBoardOfAnotherVersionStaysWhileItHasAKeeper) {
  const std::string folder = "/dev/shm/freshet-tier-" + std::to_string(::geteuid());
  {
    const TierLab makes_the_folder;
    ASSERT_EQ(makes_the_folder.tier_command({"stat"}).code, 0);
  }
  char name[32];
  std::snprintf(name, sizeof name, "/%016x", static_cast<unsigned>(::getpid()));
  const std::string board = folder + name;
  std::ofstream(board) << "of another version";
  int lock = ::open((board + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_EQ(::flock(lock, LOCK_EX), 0);
  {
    const TierLab lab;
    ASSERT_EQ(lab.tier_command({"stat"}).code, 0);
    EXPECT_TRUE(std::filesystem::exists(board) && std::filesystem::exists(board + ".lock"));
  }
  ::close(lock);
  const TierLab lab;
  ASSERT_EQ(lab.tier_command({"stat"}).code, 0);
  EXPECT_FALSE(std::filesystem::exists(board) || std::filesystem::exists(board + ".lock"));
}

TEST(TierFaults, TheSourcesErrorsReachTheProgram) {
  const TierLab lab;
  (void)lab.make("data", 10'000);
  lab.fill();
  std::ofstream(lab.path("errors.py"))
      << "import os, sys\n"
         "def code(act):\n"
         "    try: return act() and 0\n"
         "    except OSError as error: return error.errno\n"
         "folder = sys.argv[1]\n"
         "os.symlink(folder + '/loop', folder + '/loop')\n"
         "print([code(lambda: os.open(path, flags)) for path, flags in [\n"
         "    (folder + '/absent', os.O_RDONLY), (folder + '/data/below', os.O_RDONLY), (folder + '/loop', "
         "os.O_RDONLY),\n"
         "    (folder + '/' + 'n' * 300, os.O_RDONLY), (folder + '/data', os.O_RDONLY | os.O_DIRECTORY),\n"
         "    (folder + '/x' * 3000, os.O_RDONLY), ('', os.O_RDONLY)]])\n"
         "os.unlink(folder + '/loop')\n"
         "import resource\n"
         "resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))\n"
         "print(code(lambda: os.open(folder + '/data', os.O_RDONLY)))\n";
  const std::string command = "python3 " + lab.path("errors.py") + " " + lab.source();
  const std::string expected = lab.plain(command).out;
  EXPECT_EQ(lab.served(command).out, expected);
  EXPECT_EQ(expected.substr(0, 2), "[2");
}

TEST(KilledKeeper, LeavesNothingHalfThatIsRead) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const TierLab lab;
  constexpr int kFiles = 40;
  for (int i = 0; i < kFiles; ++i) (void)lab.make("f" + std::to_string(i), 200'000, static_cast<unsigned>(i));
  const std::string read_all = "cat " + lab.source() + "/* | sha256sum";
  const std::string expected = lab.plain(read_all).out;
  for (int round = 0; round < 8; ++round) {
    ASSERT_EQ(lab.tier_command({"prefetch"}).code, 0);
    const auto pid = lab.total()["keeper_pid"];
    // Killed after a number of copies that chance says; a keeper that was done by then is as good.
    const auto enough = static_cast<std::size_t>(random() % kFiles);
    if (pid.is_number()) {
      while (lab.copies().size() < enough && ::kill(pid.get<int>(), 0) == 0) std::this_thread::yield();
      (void)::kill(pid.get<int>(), SIGKILL);
    }
    // Counted without a keeper, which would clean up first.
    const Ran checked = lab.tier_command({"verify"});
    EXPECT_EQ(checked.code, 0) << checked.out;
    const Ran got = lab.run({"/bin/sh", "-c", "export LD_PRELOAD=" FRESHET_TIER_READER "; " + read_all});
    EXPECT_EQ(got.out, expected);
    if (round % 2 == 1) (void)lab.tier_command({"drop"});
  }
  lab.fill();
  EXPECT_EQ(lab.served(read_all).out, expected);
  EXPECT_EQ(lab.copies().size(), static_cast<std::size_t>(kFiles));
  for (const auto& entry : std::filesystem::directory_iterator(lab.tier())) {
    EXPECT_FALSE(entry.path().filename().string().starts_with(".freshet-copy-")) << entry.path();
  }
}

TEST(KilledKeeper, IsReplacedWhileARunGoesOn) {
  const TierLab lab;
  const std::string file = lab.make("data", 10'000);
  // The command itself kills the keeper, then asks for copies until there is one, which another keeper must have made.
  std::ofstream(lab.path("kill.py"))
      << "import json, os, signal, subprocess, sys\n"
         "plain = {name: value for name, value in os.environ.items() if name != 'LD_PRELOAD'}\n"
         "def total():\n"
         "    lines = subprocess.run([sys.argv[2], 'tier', 'stat', '--json'], stdout=subprocess.PIPE, text=True, "
         "env=plain).stdout\n"
         "    return json.loads(lines.splitlines()[-1])\n"
         "first = total()['keeper_pid']\n"
         "os.kill(first, signal.SIGKILL)\n"
         "pid = first\n"
         "while pid in (None, first): pid = total()['keeper_pid']\n"
         "print('replaced')\n"
         "while not total()['hits']: open(sys.argv[1], 'rb').read()\n"
         "print('copied')\n";
  EXPECT_EQ(lab.served("python3 " + lab.path("kill.py") + " " + file + " " FRESHET_PROGRAM).out, "replaced\ncopied\n");
}

TEST(SeveralPrograms, MakeOneCopyOfEachFile) {
  const TierLab lab;
  constexpr int kFiles = 30;
  for (int i = 0; i < kFiles; ++i) (void)lab.make("f" + std::to_string(i), 50'000, static_cast<unsigned>(i));
  const std::string read_all = "cat " + lab.source() + "/* | sha256sum";
  const std::string one = lab.plain(read_all).out;
  const Ran ran = lab.served("for i in 1 2 3 4; do (" + read_all + ") & done; wait");
  EXPECT_EQ(ran.out, one + one + one + one);
  ASSERT_EQ(lab.tier_command({"settle"}).code, 0);
  lab.fill();
  const auto total = lab.total();
  EXPECT_EQ(total["copied_files"], kFiles);
  EXPECT_EQ(total["source_read_bytes"], kFiles * 50'000);
  EXPECT_EQ(lab.served("for i in 1 2 3 4; do (" + read_all + ") & done; wait").out, one + one + one + one);
  EXPECT_EQ(lab.total()["hits"].get<int>() - total["hits"].get<int>(), 4 * kFiles);
}

TEST(SeveralPrograms, ShareOneKeeperAndItEndsByItself) {
  const TierLab lab;
  (void)lab.make("data", 1000);
  ASSERT_EQ(lab.served("true & true").code, 0);
  ASSERT_EQ(lab.tier_command({"settle"}).code, 0);
  EXPECT_TRUE(came_true([&] { return !lab.total()["keeper_pid"].is_number(); }));
  // One in the foreground stays, and no second comes beside it.
  ChildProcess keeper({FRESHET_PROGRAM, "tier", "keep", "--config", lab.config()});
  EXPECT_TRUE(came_true([&] { return lab.total()["keeper_pid"].is_number(); }));
  EXPECT_EQ(lab.total()["keeper_pid"], keeper.pid());
  EXPECT_EQ(lab.tier_command({"keep"}).code, 1);
  EXPECT_EQ(lab.tier_command({"stop"}).code, 0);
  EXPECT_EQ(lab.total()["keeper_pid"], nullptr);
}

}  // namespace
}  // namespace freshet::test
