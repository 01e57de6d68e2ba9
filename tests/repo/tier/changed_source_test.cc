// SPDX-License-Identifier: Apache-2.0
// A source that changed is seen at the next open, whatever was copied before.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>

#include "tests/repo/tier/support/lab.h"

namespace freshet::test {
namespace {

struct Change {
  const char* name;
  std::function<void(const std::string&)> make;
};

void append(const std::string& path) { std::ofstream(path, std::ios::app) << "more"; }
void rewrite_with_times_put_back(const std::string& path) {
  struct stat before {};
  ASSERT_EQ(::stat(path.c_str(), &before), 0);
  {
    std::fstream file(path, std::ios::in | std::ios::out);
    file << "other bytes";
  }
  const timespec times[2] = {before.st_atim, before.st_mtim};
  ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
}
void replace(const std::string& path) {
  std::ofstream(path + ".new") << std::string(5000, 'n');
  std::filesystem::rename(path + ".new", path);
}

const Change kChanges[] = {
    {"append", append},
    {"rewrite", [](const std::string& path) { std::ofstream(path) << "all new"; }},
    {"rewrite with its times put back", rewrite_with_times_put_back},
    {"truncation", [](const std::string& path) { std::filesystem::resize_file(path, 10); }},
    {"rename over", replace},
    {"unlink", [](const std::string& path) { std::filesystem::remove(path); }},
    {"a folder in its place",
     [](const std::string& path) {
       std::filesystem::remove(path);
       std::filesystem::create_directory(path);
     }},
    {"a link to another",
     [](const std::string& path) {
       replace(path + ".other");
       std::filesystem::remove(path);
       std::filesystem::create_symlink(path + ".other", path);
     }},
    {"chmod", [](const std::string& path) { ASSERT_EQ(::chmod(path.c_str(), 0640), 0); }},
};

TEST(ChangedSource, IsSeenAtTheNextOpen) {
  for (const Change& change : kChanges) {
    const TierLab lab;
    const std::string file = lab.make("data", 100'000);
    lab.fill();
    ASSERT_EQ(lab.copies().size(), 1U) << change.name;
    // The file was read from its copy in this very process: the change comes between two opens of one program.
    const std::string script =
        "import os, sys\n"
        "def look():\n"
        "    try:\n"
        "        with open(sys.argv[1], 'rb') as file: print(file.read()[:50], os.fstat(file.fileno()).st_mode, "
        "flush=True)\n"
        "    except OSError as error: print(error.errno, flush=True)\n"
        "look()\n"
        "os.system(sys.argv[2])\n"
        "look()\n";
    std::ofstream(lab.path("look.py")) << script;
    (void)lab.served("cat " + file);
    change.make(file);
    const std::string look =
        "python3 " + lab.path("look.py") + " " + file + " 'echo again >> " + lab.path("unrelated") + "'";
    EXPECT_EQ(lab.served(look).out, lab.plain(look).out) << change.name;
  }
}

TEST(ChangedSource, IsSeenBetweenTwoOpensOfOneProgramAndOldDescriptorsKeepWhatTheyHad) {
  const TierLab lab;
  const std::string file = lab.make("data", 50'000);
  lab.fill();
  std::ofstream(lab.path("look.py")) << "import os, sys\n"
                                        "path = sys.argv[1]\n"
                                        "old = open(path, 'rb')\n"
                                        "with open(path + '.new', 'wb') as new: new.write(b'new')\n"
                                        "os.rename(path + '.new', path)\n"
                                        "print(open(path, 'rb').read(), len(old.read()))\n"
                                        "with open(path, 'wb') as new: new.write(b'newer')\n"
                                        "print(open(path, 'rb').read(), os.stat(path).st_size)\n";
  EXPECT_EQ(lab.served("python3 " + lab.path("look.py") + " " + file).out, "b'new' 50000\nb'newer' 5\n");
}

TEST(ChangedSource, LeavesNoOldCopyBehind) {
  const TierLab lab;
  const std::string file = lab.make("data", 70'000);
  for (unsigned seed = 1; seed <= 3; ++seed) {
    (void)lab.make("data", 70'000, seed);
    lab.fill();
    EXPECT_EQ(lab.copies().size(), 1U);
  }
  const Ran said = lab.tier_command({"stat", "--json"});
  EXPECT_EQ(nlohmann::json::parse(said.out.substr(0, said.out.find('\n')))["used_bytes"], 70'000);
  EXPECT_EQ(lab.served("sha256sum " + file).out, lab.plain("sha256sum " + file).out);
}

TEST(ChangedSource, IsNotCopiedWhileSomebodyMayWriteToIt) {
  const TierLab lab;
  const std::string file = lab.make("data", 8192);
  struct statfs where {};
  ASSERT_EQ(::statfs(file.c_str(), &where), 0);
  if (where.f_type != EXT4_SUPER_MAGIC && where.f_type != BTRFS_SUPER_MAGIC && where.f_type != TMPFS_MAGIC) {
    GTEST_SKIP() << "this file system does not tell who writes";
  }
  const int fd = ::open(file.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  void* const mapped = ::mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  ::close(fd);
  // The first write makes the page dirty and sets the times; the second does neither.
  std::memcpy(mapped, "one", 3);
  lab.fill();
  EXPECT_TRUE(lab.copies().empty());
  std::memcpy(mapped, "two", 3);
  EXPECT_EQ(lab.served("head -c 3 " + file).out, "two");
  ::munmap(mapped, 8192);
  lab.fill();
  EXPECT_EQ(lab.copies().size(), 1U);
  EXPECT_EQ(lab.served("head -c 3 " + file).out, "two");
}

TEST(ChangedSource, ThatNeverRestsIsGivenUp) {
  const TierLab lab;
  const std::string file = lab.make("log", 100);
  // Changes for as long as it is asked for, and by far longer than anything here takes. The command goes without the
  // reader: a sanitizer's program takes no library before its own.
  EXPECT_EQ(
      lab.served("(while :; do echo more >> " + file + "; done) & W=$!; for i in 1 2 3 4 5; do cat " + file +
                 " > /dev/null; done; LD_PRELOAD= '" FRESHET_PROGRAM "' tier settle --timeout 60; echo $?; kill $W")
          .out,
      "0\n");
}

TEST(ChangedSource, WhileItIsWaitedForEndsTheWait) {
  const TierLab lab("first_open = \"wait\"\nwait_s = 600");
  const std::string file = lab.make("data", 1000);
  // The file is young, so its copy waits; meanwhile it becomes another, again and again.
  EXPECT_EQ(
      lab.served("(for i in $(seq 2000); do echo more >> " + file + "; done) & head -c 1 " + file + " | wc -c").out,
      "1\n");
}

TEST(ChangedSource, ThatItsPathNoLongerReachesIsNotWaitedFor) {
  const TierLab lab("first_open = \"wait\"\nwait_s = 600");
  const std::string file = lab.make("data", 1000);
  // The shell opens the file without the reader. The program opens it again, by its descriptor.
  EXPECT_EQ(lab.run({"/bin/sh", "-c",
                     "exec 3< " + file + "; rm " + file +
                         "; '" FRESHET_PROGRAM "' tier run -- head -c 1 /proc/self/fd/3 | wc -c"})
                .out,
            "1\n");
}

TEST(ChangedSource, IsNotWaitedForWithoutADescriptorForTheCopy) {
  const TierLab lab("first_open = \"wait\"\nwait_s = 600");
  const std::string file = lab.make("data", 1000);
  EXPECT_EQ(lab.served("python3 -c 'import os, resource\n"
                       "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
                       "taken = []\n"
                       "while len(taken) < 64:\n"
                       "    try: taken.append(os.dup(0))\n"
                       "    except OSError: break\n"
                       "os.close(taken.pop())\n"
                       "print(len(os.read(os.open(\"" +
                       file + "\", os.O_RDONLY), 1)))'")
                .out,
            "1\n");
}

}  // namespace
}  // namespace freshet::test
