// SPDX-License-Identifier: Apache-2.0
// Every way to read gives the bytes, and says of descriptors what it says without tiers: cold, warm, and with broken
// tiers.

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <memory>

#include "tests/repo/tier/support/slow_lab.h"
#include "tests/support/slow_folder/slow_folder.h"

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
      "head -c 1000 \"$F\" | sha256sum",
      "wc -c \"$F\"",
      "wc -l < \"$F\"",
      "md5sum \"$F\"; cksum < \"$F\"",
      "od -An -tx1 \"$F\" | cksum",
      "grep -c -a x \"$F\"",
      "sed -n '$=' \"$F\"",
      "awk 'END { print NR }' \"$F\" 2> /dev/null",
      "LC_ALL=C sort \"$F\" | sha256sum",
      "tac \"$F\" | sha256sum",
      "gzip -c < \"$F\" | gzip -dc | sha256sum",
      "split -b 100000 --filter=cksum \"$F\"",
      "diff \"$F\" /dev/null | wc -c",
      "tr -d x < \"$F\" | cksum",
      "cut -b 1-7 \"$F\" | cksum",
      "find \"$D\" -type f -exec cksum {} + | cut -d' ' -f1,2 | sort",
      "find \"$D\" -type f -print0 | sort -z | xargs -0 -n 1 sha256sum | cut -c1-64",
      "cp --sparse=always \"$F\" \"$D/../copied\" && cksum < \"$D/../copied\" && rm \"$D/../copied\"",
      "cp -p \"$F\" \"$D/../copied\" && stat -c '%s %a %Y' \"$D/../copied\" && rm \"$D/../copied\"",
      "install -m 600 \"$F\" \"$D/../copied\" && cksum < \"$D/../copied\" && rm \"$D/../copied\"",
      "ln -s \"$F\" \"$D/../link\" && cksum < \"$D/../link\" && cat \"$D/../link\" | cksum; rm \"$D/../link\"",
      "bash -c 'while IFS= read -r -d \"\" line || [ -n \"$line\" ]; do n=$((n + 1)); done < \"$F\"; echo $n' 2> "
      "/dev/null",
      "bash -c 'exec 5< \"$F\"; (cat <&5) | cksum; mapfile -t lines < \"$F\"; echo ${#lines[@]}' 2> /dev/null",
      "perl -e 'open(my $f, \"<:raw\", $ENV{F}); local $/; print length(<$f> // \"\"), \"\\n\"'",
      "stat -L -c '%d %i %s %a %h %u %X %Y %Z' /dev/stdin < \"$F\" | cut -d' ' -f3",
  };
  const std::string python =
      R"PY(
import hashlib, io, linecache, mmap, os, pathlib, shutil, subprocess, sys, tempfile, threading
path, copied = os.environ["F"], os.environ["D"] + "/../py.copied"
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
shutil.copyfile(path, copied)
say("copyfile", open(copied, "rb").read())
os.unlink(copied)
out = io.BytesIO()
for piece in iter(lambda f=open(path, "rb"): f.read(1000), b""): out.write(piece)
say("pieces", out.getvalue())
whole = bytearray(os.stat(path).st_size + 10)
with open(path, "rb", buffering=0) as file: print("readinto", file.readinto(whole), hashlib.sha256(whole).hexdigest())
with open(path, "rb") as file:
    file.seek(info.st_size // 2); middle = file.tell(); say("seek", file.read())
    file.seek(-min(info.st_size, 10), os.SEEK_END); say("from-end", file.read())
fd = os.open(path, os.O_RDONLY)
parts = [bytearray(1000), bytearray(70000)]
print("readv", os.readv(fd, parts), hashlib.sha256(b"".join(parts)).hexdigest())
print("preadv", os.preadv(fd, parts, 5), hashlib.sha256(b"".join(parts)).hexdigest())
print("offset", os.lseek(fd, 0, os.SEEK_CUR))
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
os.close(fd)
source, target = os.open(path, os.O_RDONLY), tempfile.TemporaryFile()
while os.sendfile(target.fileno(), source, None, 1 << 20): pass
target.seek(0); say("sendfile", target.read()); os.close(source)
a, b = os.pipe(); source = os.open(path, os.O_RDONLY)
print("splice", os.splice(source, b, 4096) if hasattr(os, "splice") else 0); os.close(source); os.close(a); os.close(b)
with open(path, "rb") as file: print("child", subprocess.run(["cksum"], stdin=file, stdout=subprocess.PIPE).stdout)
with open(path, "rb") as file: print("passed", subprocess.run([sys.executable, "-c", "import os, sys, hashlib\nprint(hashlib.sha256(os.fdopen(int(sys.argv[1]), \"rb\").read()).hexdigest())", str(file.fileno())], pass_fds=[file.fileno()], stdout=subprocess.PIPE).stdout)
got = [None] * 4
def read_one(i): got[i] = hashlib.sha256(open(path, "rb").read()).hexdigest()
threads = [threading.Thread(target=read_one, args=(i,)) for i in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print("threads", set(got))
shutil.copy2(path, copied); print("copy2", os.stat(copied).st_mtime_ns); os.unlink(copied)
print("lines", len(open(path, encoding="latin-1").readlines()), len(linecache.getlines("/dev/null")))
fd = os.open(path, os.O_RDONLY); pid = os.fork()
if pid == 0: print("forked", len(os.read(fd, 100)), flush=True); os._exit(0)
os.waitpid(pid, 0); print("after", os.lseek(fd, 0, os.SEEK_CUR)); os.close(fd)
folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
fd = os.open(os.path.basename(path), os.O_RDONLY, dir_fd=folder); say("dir-fd", os.read(fd, 1 << 24)); os.close(fd); os.close(folder)
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
  explicit WaysToRead(bool is_slow = false) {
    if (is_slow) {
      std::filesystem::create_directory(lab_.path("backing"));
      auto opened = SlowFolder::open({.backing = lab_.path("backing"), .mount = lab_.source()});
      if (opened) slow_ = std::move(*opened);
      if (!opened) why_not_ = opened.error().message();
    }
    // A name with what a shell or a line would trip over.
    files_ = {lab_.make("a name\nof \xff\xfe two lines", 300'001, 7), lab_.make("empty", 0)};
    // For each way in which a copy is broken one file is read.
    for (const char* name : {"third", "fourth"}) broken_.push_back(lab_.make(name, 2000, 8));
  }
  /// Its keeper ends while its source is there.
  ~WaysToRead() override { (void)lab_.tier_command({"stop"}); }

  /// All ways in one run, each with a line of its own after what it said.
  static std::string all_of(const std::vector<std::string>& ways) {
    std::string script;
    for (std::size_t i = 0; i < ways.size(); ++i) {
      script += "(" + ways[i] + "\n); echo \"== " + std::to_string(i) + " ended $?\"\n";
    }
    return script;
  }
  static std::vector<std::string> sections_of(const std::string& out, std::size_t count) {
    std::vector<std::string> sections;
    std::size_t begin = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t mark = out.find("== " + std::to_string(i) + " ended ", begin);
      const std::size_t end = mark == std::string::npos ? out.size() : out.find('\n', mark);
      sections.push_back(out.substr(begin, end - begin));
      begin = end;
    }
    return sections;
  }

  /// Without tiers first: that is the oracle.
  void compare(const std::string& file, const std::string& when) {
    std::vector<std::string> ways = shell_ways();
    ways.push_back(std::string(FRESHET_READ_WAYS) + " \"$F\"");
    const std::string script = lab_.path("ways.sh");
    std::ofstream(script, std::ios::binary)
        << "export F='" << file << "' D='" << lab_.source() << "' READ_WAYS_EARLY='" << file << "'\n"
        << all_of(ways);
    const Ran plain = lab_.plain("sh '" + script + "'");
    const Ran served = lab_.served("sh '" + script + "'");
    EXPECT_EQ(served.code, plain.code) << when << "\n" << served.err;
    const std::vector<std::string> expected = sections_of(plain.out, ways.size());
    const std::vector<std::string> got = sections_of(served.out, ways.size());
    // Python's ways and C's go on to their end.
    for (std::size_t i = ways.size() - 2; i < ways.size(); ++i)
      EXPECT_TRUE(expected[i].ends_with(" ended 0")) << plain.err;
    for (std::size_t i = 0; i < ways.size(); ++i) EXPECT_EQ(got[i], expected[i]) << when << ": " << ways[i];
  }
  void compare_all(const std::string& when) {
    for (const std::string& file : files_) compare(file, when);
  }
  void compare_cold_warm_and_broken();

  TierLab lab_;
  std::unique_ptr<SlowFolder> slow_;
  std::string why_not_;
  std::vector<std::string> files_;
  std::vector<std::string> broken_;
};

void WaysToRead::compare_cold_warm_and_broken() {
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
  ASSERT_EQ(lab_.copies().size(), 4U);
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
  for (const std::string& file : broken_) {
    const std::string read = std::string(FRESHET_READ_WAYS) + " '" + file + "'";
    EXPECT_EQ(lab_.served(read).out, lab_.plain(read).out) << file;
  }
  ASSERT_EQ(lab_.tier_command({"stop"}).code, 0);
  std::filesystem::remove_all(lab_.tier());
  std::ofstream(lab_.tier()) << "no folder";
  compare_all("no tier");
}

TEST_F(WaysToRead, GiveTheSameColdWarmAndWithBrokenTiers) { compare_cold_warm_and_broken(); }

class WaysToReadOfASlowFolder : public WaysToRead {
 protected:
  WaysToReadOfASlowFolder() : WaysToRead(true) {}
};

TEST_F(WaysToReadOfASlowFolder, GiveTheSameColdWarmAndWithBrokenTiers) {
  if (!slow_) GTEST_SKIP() << why_not_;
  compare_cold_warm_and_broken();
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

/// A handler may have 8 KiB, of which the kernel puts 3 there on some processors, and the dynamic linker 3 more.
TEST(WaysToReadWarm, WorksOnTheSmallStackOfASignalsHandler) {
  constexpr long kOfTheReader = 1024;
  for (const char* more : {"", "validate = \"never\"", "first_open = \"wait\""}) {
    const TierLab lab(more);
    const std::string file = lab.make("data", 100'000);
    const std::string read = std::string(FRESHET_READ_WAYS) + " '" + file + "' handler";
    const Ran plain = lab.plain(read);
    EXPECT_NE(plain.out.find("in-handler "), std::string::npos) << plain.out;
    for (const char* when : {"cold", "warm"}) {
      const Ran served = lab.served(read);
      EXPECT_EQ(served.out, plain.out) << more << " " << when << " " << served.code << " " << served.err;
      const long used = std::strtol(served.err.c_str(), nullptr, 10);
      EXPECT_GT(used, 0) << more << " " << when << " " << served.err;
      EXPECT_LT(used, std::strtol(plain.err.c_str(), nullptr, 10) + kOfTheReader) << more << " " << when;
      lab.fill();
    }
  }
}

TEST(WaysToReadWarm, GivesARingTheSameBytes) {
  const TierLab lab;
  const std::string file = lab.make("data", 300'000);
  const std::string read = std::string(FRESHET_READ_WAYS) + " '" + file + "' ring";
  const std::string expected = lab.plain(read).out;
  if (expected.starts_with("no ring")) GTEST_SKIP() << expected;
  lab.fill();
  EXPECT_EQ(lab.served(read).out, expected);
  EXPECT_EQ(lab.total()["misses"], 0);
}

TEST(WaysToReadWarm, LooksAtTheSourceOnceAndOpensItNever) {
  const TierLab lab;
  const std::string file = lab.make("data", 100);
  lab.fill();
  const Ran name = lab.served("python3 -c 'import os; fd = os.open(\"" + file +
                              "\", os.O_RDONLY); print(os.readlink(\"/proc/self/fd/%d\" % fd))'");
  EXPECT_TRUE(name.out.starts_with(lab.tier())) << name.out;
}

TEST(WaysToReadOfASlowFolderWarm, OpensNothingAtTheSourceHoweverItIsSpelled) {
  SlowLab lab({.cached = false});
  if (!lab) GTEST_SKIP() << lab.why_not();
  const std::string file = lab->make("folder/data", 5000);
  const std::string other = lab->make("folder/other", 5000);
  ASSERT_EQ(::chmod(file.c_str(), 0640), 0);
  std::filesystem::create_symlink(file, lab->source("link"));
  std::filesystem::create_symlink(lab->source("folder"), lab->source("folders"));
  std::filesystem::create_symlink(file, lab->path("outside"));
  std::filesystem::create_symlink(lab->source("folder"), lab->path("around"));
  // A file of somebody else, where this user may make one.
  const bool is_of_others = ::chown(other.c_str(), 12345, 12345) == 0 && ::chmod(other.c_str(), 0600) == 0;
  lab->fill();
  ASSERT_EQ(lab->copies().size(), 2U);
  std::vector<std::string> ways = {
      "os.open(FILE, 0)",
      "os.open(FILE, os.O_NOATIME)",
      "os.open(FILE, os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)",
      "[os.chdir(SOURCE + '/folder'), os.open('data', 0)][-1]",
      "[os.chdir(SOURCE), os.open('./folder//data', 0)][-1]",
      "[os.chdir(SOURCE + '/folder'), os.open('../folder/data', os.O_NOATIME)][-1]",
      "[os.chdir(LAB), (lambda file: os.dup(file.fileno()))(open('source/folder/data', 'rb'))][-1]",
      "os.open('data', 0, dir_fd=os.open(SOURCE + '/folder', os.O_DIRECTORY))",
      "os.open('../folder/./data', 0, dir_fd=os.open(SOURCE + '/folder', os.O_DIRECTORY))",
      "os.open(SOURCE + '/link', 0)",
      "os.open(LAB + '/outside', 0)",
      "os.open(LAB + '/around/data', 0)",
      "[os.chdir(LAB), os.open('outside', 0)][-1]",
      // The reader learns a path through a link to a folder below a source at its first open.
      "[os.open(SOURCE + '/folders/data', 0) for learned in (False, True)][-1]",
  };
  for (const char* flags : {"0", "os.O_NOATIME"}) {
    if (is_of_others) ways.push_back("os.open(SOURCE + '/folder/other', " + std::string(flags) + ")");
  }
  std::ofstream script(lab->path("open.py"));
  script << "import os, sys\nLAB, SOURCE, FILE, TIER = sys.argv[1:]\n";
  std::string expected;
  for (const std::string& way : ways) {
    script << "fd = " << way << "\n"
           << "print(len(os.read(fd, 9999)), os.readlink('/proc/self/fd/%d' % fd).startswith(TIER), \"" << way
           << "\")\n";
    expected += "5000 True " + way + "\n";
  }
  script.close();
  lab.forget_and_count();
  const Ran got = lab->served("python3 '" + lab->path("open.py") + "' '" + lab->path("") + "' '" + lab->source() +
                              "' '" + file + "' '" + lab->tier() + "'");
  EXPECT_EQ(got.out, expected) << got.err;
  EXPECT_EQ(lab.slow().counters().value().opens, 1U) << "the one by which a way was learned";
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
  std::ofstream(lab.path("open.py"))
      << "import ctypes, errno, os, subprocess, sys\n"
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
