// SPDX-License-Identifier: Apache-2.0
// Every way to read gives the bytes, and says of descriptors what it says without tiers: cold, warm, and with broken
// tiers.

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "tests/tier/support/lab.h"

namespace freshet::test {
namespace {

/// Commands that print something of the file "$F" and of its folder "$D".
std::vector<std::string> shell_ways() {
  std::vector<std::string> ways = {
      "cat \"$F\" | sha256sum",
      "cat < \"$F\" | sha256sum",
      "sha256sum \"$F\"",
      "dd if=\"$F\" bs=777 status=none | sha256sum",
      "dd if=\"$F\" bs=64k iflag=direct status=none | sha256sum",
      "cp \"$F\" \"$D/../copied\" && sha256sum < \"$D/../copied\" && rm \"$D/../copied\"",
      "tar -C \"$D\" -cf - . | sha256sum",
      "cmp \"$F\" \"$F\" && echo same",
      "tail -c 100 \"$F\" | sha256sum",
      "wc -c \"$F\"",
      "stat -L -c '%d %i %s %a %h %u %X %Y %Z' /dev/stdin < \"$F\" | cut -d' ' -f3",
  };
  const std::string python =
      R"PY(
import hashlib, io, mmap, os, pathlib, shutil, sys
path = os.environ["F"]
def say(way, data): print(way, len(data), hashlib.sha256(data).hexdigest())
say("open", open(path, "rb").read())
say("path", pathlib.Path(path).read_bytes())
with open(path, "rb", buffering=0) as file: say("raw", file.read())
with open(path, "rb") as file:
    info = os.fstat(file.fileno())
    print(info.st_dev, info.st_ino, info.st_size, info.st_mode, info.st_nlink, info.st_uid, info.st_mtime_ns, info.st_ctime_ns)
    if info.st_size: say("mmap", mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)[:])
fd = os.open(path, os.O_RDONLY)
say("pread", os.pread(fd, 1 << 24, 0))
os.close(fd)
with open(path, "rb") as file, os.fdopen(os.dup(file.fileno()), "rb") as second: say("dup", second.read())
shutil.copyfile(path, path + ".copied")
say("copyfile", open(path + ".copied", "rb").read())
os.unlink(path + ".copied")
out = io.BytesIO()
for piece in iter(lambda f=open(path, "rb"): f.read(1000), b""): out.write(piece)
say("pieces", out.getvalue())
try: open(path + ".absent")
except OSError as error: print(error.errno)
try:
    import numpy
    say("fromfile", numpy.fromfile(path, dtype=numpy.uint8).tobytes())
    if info.st_size: say("memmap", numpy.memmap(path, mode="r").tobytes())
except ImportError: pass
)PY";
  ways.push_back("python3 -c '" + python + "'");
  return ways;
}

class WaysToRead : public testing::Test {
 protected:
  /// Without tiers first: that is the oracle.
  void compare(const std::string& file, const std::string& when) {
    const std::string named = "F='" + file + "' D='" + lab_.source() + "' READ_WAYS_EARLY='" + file + "' ";
    std::vector<std::string> ways = shell_ways();
    ways.push_back(std::string(FRESHET_READ_WAYS) + " \"$F\"");
    for (const std::string& way : ways) {
      const Ran expected = lab_.plain("export " + named + "; " + way);
      const Ran got = lab_.served("export " + named + "; " + way);
      EXPECT_EQ(got.code, expected.code) << when << ": " << way << "\n" << got.err;
      EXPECT_EQ(got.out, expected.out) << when << ": " << way;
    }
  }
  void compare_all(const std::string& when) {
    for (const std::string& file : files_) compare(file, when);
  }

  TierLab lab_;
  // A name with what a shell or a line would trip over.
  std::vector<std::string> files_ = {lab_.make("a name\nof \xff\xfe two lines", 300'001, 7), lab_.make("empty", 0)};
};

TEST_F(WaysToRead, GiveTheSameColdWarmAndWithBrokenTiers) {
  compare_all("cold");
  ASSERT_EQ(lab_.tier_command({"settle"}).code, 0);
  // What writes to a source changes it; the copies are of what is there now.
  lab_.fill();
  const auto before = lab_.total();
  compare_all("warm");
  const auto warm = lab_.total();
  EXPECT_GT(warm["hits"].get<int>(), before["hits"].get<int>() + 50);
  EXPECT_EQ(warm["fallbacks"], 0);
  // A keeper would mend what is broken here while it is being broken.
  ASSERT_EQ(lab_.tier_command({"stop"}).code, 0);
  // What stands in the place of a copy: a folder, a pipe, a link to itself, half of it.
  int turn = 0;
  for (const std::string& copy : lab_.copies()) {
    std::filesystem::remove(copy);
    switch (turn++ % 4) {
      case 0: std::filesystem::create_directory(copy); break;
      case 1: ASSERT_EQ(::mkfifo(copy.c_str(), 0400), 0); break;
      case 2: std::filesystem::create_symlink(copy, copy); break;
      default: std::ofstream(copy) << "half"; break;
    }
  }
  compare_all("broken copies");
  ASSERT_EQ(lab_.tier_command({"stop"}).code, 0);
  std::filesystem::remove_all(lab_.tier());
  std::ofstream(lab_.tier()) << "no folder";
  compare_all("no tier");
}

TEST(WaysToReadWarm, IsServedFromTheTier) {
  const TierLab lab;
  const std::string file = lab.make("folder/data", 200'000);
  std::filesystem::create_symlink(file, lab.path("link"));
  lab.fill();
  ASSERT_EQ(lab.copies().size(), 1U);
  const char* ways[] = {"cat \"$F\"",
                        "dd if=\"$F\" status=none",
                        "python3 -c 'import os; open(os.environ[\"F\"], \"rb\").read()'",
                        "cd \"$D\" && cat data",
                        "cat \"$D/../folder/./data\"",
                        "cat \"$L\"",
                        "cat < \"$F\""};
  for (const char* way : ways) {
    const Ran got = lab.tier_command(
        {"run", "--report", lab.path("report"), "--", "/bin/sh", "-c",
         "export F='" + file + "' D='" + lab.source("folder") + "' L='" + lab.path("link") + "'; " + way});
    ASSERT_EQ(got.code, 0) << got.err;
    std::ifstream in(lab.path("report"));
    const auto report = nlohmann::json::parse(in, nullptr, false);
    // A shell's own open of "<" is the shell's.
    EXPECT_EQ(report["misses"], 0) << way;
    EXPECT_EQ(report["hits"], 1) << way;
    EXPECT_EQ(report["hit_bytes"], 200'000) << way;
  }
}

TEST(WaysToReadWarm, LooksAtTheSourceOnceAndOpensItNever) {
  const TierLab lab;
  const std::string file = lab.make("data", 100);
  lab.fill();
  const Ran name = lab.served("python3 -c 'import os; fd = os.open(\"" + file +
                              "\", os.O_RDONLY); print(os.readlink(\"/proc/self/fd/%d\" % fd))'");
  EXPECT_TRUE(name.out.starts_with(lab.tier())) << name.out;
}

TEST(WaysToReadWarm, LeavesProgramsAloneWithoutItsConfig) {
  const TierLab lab;
  const std::string file = lab.make("data", 100);
  lab.fill();
  const Ran library = lab.tier_command({"library"});
  ASSERT_EQ(library.code, 0) << library.err;
  const std::string preload = "LD_PRELOAD=" + library.out.substr(0, library.out.size() - 1);
  const std::string read = " python3 -c 'import os; fd = os.open(\"" + file +
                           "\", os.O_RDONLY); print(os.readlink(\"/proc/self/fd/%d\" % fd))'";
  EXPECT_TRUE(lab.plain(preload + read).out.starts_with(lab.tier()));
  EXPECT_EQ(lab.plain("unset FRESHET_TIER; " + preload + read).out, file + "\n");
  EXPECT_EQ(lab.plain("export FRESHET_TIER=/nothing/here; " + preload + read).out, file + "\n");
  EXPECT_EQ(lab.plain("export FRESHET_TIER=" + file + "; " + preload + read).out, file + "\n");
}

TEST(WaysToOpen, BadAddressesAndPipesAreAsTheyWere) {
  const TierLab lab;
  const std::string file = lab.make("data", 1000);
  lab.fill();
  std::ofstream(lab.path("open.py")) << "import ctypes, errno, os, subprocess, sys\n"
                                        "c = ctypes.CDLL(None, use_errno=True)\n"
                                        "for address in (8, 0x10000000, (1 << 47) - 4096):\n"
                                        "    print(c.open(ctypes.c_void_p(address), 0), ctypes.get_errno() == errno.EFAULT)\n"
                                        "os.mkfifo(sys.argv[1])\n"
                                        "for _ in range(30):\n"
                                        "    writer = subprocess.Popen(['sh', '-c', 'echo x > \"$0\"', sys.argv[1]])\n"
                                        "    c.freopen.restype = ctypes.c_void_p\n"
                                        "    c.fopen.restype = ctypes.c_void_p\n"
                                        "    stream = c.fopen(b'/dev/null', b'r')\n"
                                        "    stream = c.freopen(sys.argv[1].encode(), b'r', ctypes.c_void_p(stream))\n"
                                        "    writer.wait()\n"
                                        "    c.fclose(ctypes.c_void_p(stream))\n"
                                        "print('ends')\n";
  const std::string command = "python3 " + lab.path("open.py") + " " + lab.path("pipe");
  const Ran got = lab.served(command);
  EXPECT_EQ(got.out, "-1 True\n-1 True\n-1 True\nends\n") << got.err;
}

}  // namespace
}  // namespace freshet::test
