// SPDX-License-Identifier: Apache-2.0
// `freshet tier run --via seccomp`: what no library can be loaded into is served too.

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/repo/tier/support/slow_lab.h"

namespace freshet::test {
namespace {

class Supervised : public testing::Test {
 protected:
  void SetUp() override {
    const Ran tried = supervised("true");
    if (tried.err.find("lets no process supervise") != std::string::npos) GTEST_SKIP() << tried.err;
    ASSERT_EQ(tried.code, 0) << tried.err;
  }
  Ran supervised(const std::string& command) const {
    return lab_.tier_command(
        {"run", "--via", "seccomp", "--report", lab_.path("report"), "--", "/bin/sh", "-c", command});
  }
  nlohmann::json report() const {
    std::ifstream in(lab_.path("report"));
    return nlohmann::json::parse(in, nullptr, false);
  }

  const TierLab lab_;
};

TEST_F(Supervised, StaticProgramsAreServed) {
  const std::string file = lab_.make("folder/a name\nof two lines", 300'001);
  (void)lab_.make("folder/empty", 0);
  std::filesystem::create_symlink(file, lab_.path("link"));
  lab_.fill();
  const std::string read = "cd '" + lab_.source("folder") + "' && '" FRESHET_STATIC_READER "' '" + file +
                           "' empty 'a name\nof two lines' '" + lab_.source("absent") + "' '" + file + "/x' '" +
                           lab_.path("link") + "' '" + lab_.config() + "'";
  const Ran expected = lab_.plain(read);
  const Ran got = supervised(read);
  EXPECT_EQ(got.out, expected.out) << got.err;
  EXPECT_EQ(got.err, expected.err);
  EXPECT_EQ(report()["hits"], 3);
  EXPECT_EQ(report()["misses"], 0);
  // By the library they read the source, and that is said.
  const Ran preloaded = lab_.tier_command({"run", "--", FRESHET_STATIC_READER, file});
  EXPECT_NE(preloaded.err.find("is a static program"), std::string::npos);
  EXPECT_EQ(lab_.tier_command({"run", "--via", "seccomp", "--", FRESHET_STATIC_READER, file}).err, "");
}

TEST_F(Supervised, FirstOpensAreCopiedAndChangesAreSeen) {
  const std::string file = lab_.make("data", 5000);
  const std::string read = "'" FRESHET_STATIC_READER "' '" + file + "'";
  EXPECT_EQ(supervised(read).out, lab_.plain(read).out);
  EXPECT_EQ(report()["misses"], 1);
  ASSERT_EQ(lab_.tier_command({"settle"}).code, 0);
  EXPECT_EQ(supervised(read).out, lab_.plain(read).out);
  EXPECT_EQ(report()["hits"], 1);
  std::filesystem::create_symlink(file, lab_.source("link"));
  const std::string flags = "python3 -c 'import os\nprint(len(os.read(os.open(\"" + file +
                            "\", os.O_NOATIME | os.O_NOFOLLOW), 9999)))\ntry: os.open(\"" + lab_.source("link") +
                            "\", os.O_NOFOLLOW)\nexcept OSError as error: print(error.errno)'";
  EXPECT_EQ(supervised(flags).out, lab_.plain(flags).out);
  EXPECT_EQ(report()["hits"], 1);
  std::ofstream(file, std::ios::app) << "more";
  EXPECT_EQ(supervised(read).out, lab_.plain(read).out);
  EXPECT_EQ(report()["hits"], 0);
}

TEST_F(Supervised, CommandsEndAsTheyDoAndWhatTheyLeaveBehindGoesOn) {
  const std::string file = lab_.make("data", 5000);
  lab_.fill();
  EXPECT_EQ(supervised("exit 7").code, 7);
  EXPECT_EQ(supervised("kill -KILL $$").code, 128 + 9);
  EXPECT_EQ(lab_.tier_command({"run", "--via", "seccomp", "--", "/nothing/here"}).code, 127);
  EXPECT_EQ(lab_.tier_command({"run", "--via", "magic", "--", "true"}).code, 2);
  // Opens after the command has ended, until it is told to.
  ASSERT_EQ(lab_.plain("mkfifo '" + lab_.path("go") + "' '" + lab_.path("said") + "'").code, 0);
  const Ran began = supervised("(read go < '" + lab_.path("go") + "'; sha256sum < '" + file + "' > '" +
                               lab_.path("said") + "') > /dev/null 2>&1 &");
  EXPECT_EQ(began.code, 0);
  EXPECT_EQ(lab_.plain("echo go > '" + lab_.path("go") + "'; cat '" + lab_.path("said") + "'").out,
            lab_.plain("sha256sum < '" + file + "'").out);
}

TEST_F(Supervised, ManyOpenSideBySide) {
  for (int i = 0; i < 20; ++i) (void)lab_.make("f" + std::to_string(i), 3000, static_cast<unsigned>(i));
  lab_.fill();
  const std::string one = "'" FRESHET_STATIC_READER "' " + lab_.source() + "/* | sha256sum";
  const std::string read = "for i in 1 2 3 4 5 6 7 8; do (" + one + ") & done; wait";
  EXPECT_EQ(supervised(read).out, lab_.plain(read).out);
  EXPECT_EQ(report()["hits"], 8 * 20);
}

/// More opens wait for the source than are ever looked at there side by side.
TEST(SlowSourceSupervised, ThatDoesNotAnswerKeepsNoOtherOpenWaiting) {
  SlowLab lab({.cached = false});
  if (!lab) GTEST_SKIP() << lab.why_not();
  const std::string file = lab->make("data", 5000);
  lab->fill();
  std::ofstream(lab->path("open.py"))
      << "import glob, os, signal, sys, threading\n"
         "file, source = sys.argv[1], int(sys.argv[2])\n"
         "openat = {'x86_64': '257'}.get(os.uname().machine, '56')\n"
         "def text(path): return open(path).read()\n"
         "def is_stopped(): return all(') T ' in text(stat) for stat in glob.glob('/proc/%d/task/*/stat' % source))\n"
         "got = []\n"
         "def read():\n"
         "    fd = os.open(file, os.O_RDONLY)\n"
         "    got.append(len(os.read(fd, 10000)))\n"
         "    os.close(fd)\n"
         "def opens(reader): return text('/proc/self/task/%d/syscall' % reader.native_id).split()[0] == openat\n"
         "if not os.path.exists('/proc/self/syscall'): sys.exit('the kernel tells no calls')\n"
         "os.kill(source, signal.SIGSTOP)\n"
         "while not is_stopped(): pass\n"
         "readers = [threading.Thread(target=read) for _ in range(100)]\n"
         "for reader in readers: reader.start()\n"
         "while not all(map(opens, readers)): pass\n"
         "print(got, text('/proc/self/comm'))\n"
         "os.kill(source, signal.SIGCONT)\n"
         "for reader in readers: reader.join()\n"
         "print(got == [5000] * 100)\n";
  const Ran ran = lab->tier_command(
      {"run", "--via", "seccomp", "--", "python3", lab->path("open.py"), file, std::to_string(lab.slow().pid())});
  (void)::kill(lab.slow().pid(), SIGCONT);
  if (ran.err.find("lets no process supervise") != std::string::npos) GTEST_SKIP() << ran.err;
  if (ran.err.find("the kernel tells no calls") != std::string::npos) GTEST_SKIP() << ran.err;
  EXPECT_EQ(ran.out, "[] python3\n\nTrue\n") << ran.err;
}

}  // namespace
}  // namespace freshet::test
