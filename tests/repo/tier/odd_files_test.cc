// SPDX-License-Identifier: Apache-2.0
// Files of every kind below a source: each is what it is without tiers, and what can be copied is.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "tests/repo/tier/support/lab.h"
#include "tests/support/child_process.h"
#include "tests/support/eventually.h"

namespace freshet::test {
namespace {

std::string quoted(const std::string& path) { return "'" + path + "'"; }

/// Reads files by python, whatever their names are, and prints the size and the last bytes of each. The names are in a
/// file, ended by zeros.
Ran look_at(const TierLab& lab, const std::vector<std::string>& files, bool served) {
  std::ofstream names(lab.path("names"), std::ios::binary);
  for (const std::string& file : files) names << file << '\0';
  names.close();
  const std::string script = lab.path("look.py");
  std::ofstream(script) << "import os, sys, zlib\n"
                           "for name in open(sys.argv[1], 'rb').read().split(b'\\0')[:-1]:\n"
                           "    try:\n"
                           "        with open(name, 'rb') as file:\n"
                           "            size = os.fstat(file.fileno()).st_size\n"
                           "            head = file.read(1 << 20)\n"
                           "            file.seek(max(0, size - 100))\n"
                           "            print(size, zlib.crc32(head), zlib.crc32(file.read()))\n"
                           "    except OSError as error: print(error.errno)\n";
  const std::string command = "python3 " + quoted(script) + " " + quoted(lab.path("names"));
  return served ? lab.served(command) : lab.plain(command);
}

void expect_same(const TierLab& lab, const std::vector<std::string>& files, int hits) {
  const Ran expected = look_at(lab, files, false);
  const int before = lab.total()["hits"];
  const Ran got = look_at(lab, files, true);
  EXPECT_EQ(got.out, expected.out);
  EXPECT_EQ(lab.total()["hits"].get<int>() - before, hits);
}

TEST(OddFiles, NamesOfEveryKindAreServed) {
  const TierLab lab;
  std::vector<std::string> files;
  int seed = 0;
  for (const std::string& name :
       {std::string(255, 'n'), std::string("with\nlines\n"), std::string(" "), std::string("\xff\xfe\x80"),
        std::string("-rf"), std::string("%s%n"), std::string("'\"$`\\"), std::string(".freshet-copy-1-1"),
        std::string("a/") + std::string(255, 'd') + "/" + std::string(255, '\xc3')}) {
    files.push_back(lab.make(name, 1000, static_cast<unsigned>(++seed)));
  }
  lab.fill();
  EXPECT_EQ(lab.copies().size(), files.size());
  expect_same(lab, files, static_cast<int>(files.size()));
  EXPECT_EQ(lab.tier_command({"verify"}).code, 0);
  // One that goes is named as a line, whatever its name is.
  std::filesystem::permissions(lab.copies().front(), std::filesystem::perms::owner_all);
  std::ofstream(lab.copies().front()) << "bad";
  const Ran verified = lab.tier_command({"verify", "--json"});
  EXPECT_EQ(verified.code, 4);
  EXPECT_EQ(std::count(verified.out.begin(), verified.out.end(), '\n'), 1) << verified.out;
  // Every name again, by the command line.
  ASSERT_EQ(lab.tier_command({"drop"}).code, 0);
  for (const std::string& file : files) EXPECT_EQ(lab.tier_command({"prefetch", "--", file}).code, 0) << file;
  ASSERT_EQ(lab.tier_command({"settle"}).code, 0);
  EXPECT_EQ(lab.copies().size(), files.size());
}

TEST(OddFiles, AsLongAPathAsThereIs) {
  const TierLab lab;
  // Deeper than one path can say.
  std::filesystem::path deep = lab.source();
  const std::filesystem::path back = std::filesystem::current_path();
  std::filesystem::current_path(deep);
  const std::string step(200, 's');
  std::size_t bytes = deep.string().size();
  while (bytes < 4300) {
    ASSERT_EQ(::mkdir(step.c_str(), 0700), 0);
    ASSERT_EQ(::chdir(step.c_str()), 0);
    bytes += step.size() + 1;
    if (bytes > 3600 && bytes <= 3801) std::ofstream("fits") << "fits";
  }
  std::ofstream("deep") << "deep";
  std::filesystem::current_path(back);
  const std::string walk =
      "python3 -c 'import os, sys\nos.chdir(sys.argv[1])\nwhile True:\n    for name in (\"fits\", "
      "\"deep\"):\n        if os.path.exists(name): print(open(name).read(), end=\"\", flush=True)\n    "
      "if not os.path.isdir(\"s\" * 200): break\n    os.chdir(\"s\" * 200)' " +
      quoted(lab.source());
  const std::string expected = lab.plain(walk).out;
  EXPECT_EQ(expected, "fitsdeep");
  EXPECT_EQ(lab.served(walk).out, expected);
  EXPECT_EQ(lab.tier_command({"settle"}).code, 0);
  EXPECT_EQ(lab.served(walk).out, expected);
  lab.fill();
}

TEST(OddFiles, EmptySparseAndLargeOnesAreServed) {
  const TierLab lab("", 1, "6 GiB");
  const std::string empty = lab.make("empty", 0);
  const std::string sparse = lab.make("sparse", 100);
  std::filesystem::resize_file(sparse, 50'000'000);
  std::ofstream(sparse, std::ios::app) << "end";
  const std::string large = lab.make("large", 1000);
  std::filesystem::resize_file(large, (std::uint64_t{5} << 30) - 3);
  std::ofstream(large, std::ios::app) << "end";
  lab.fill();
  ASSERT_EQ(lab.copies().size(), 3U);
  expect_same(lab, {empty, sparse, large}, 3);
  // Holes stay holes.
  for (const std::string& copy : lab.copies()) {
    struct stat info {};
    ASSERT_EQ(::stat(copy.c_str(), &info), 0);
    EXPECT_LT(info.st_blocks * 512, 4'000'000) << info.st_size;
  }
}

TEST(OddFiles, PipesDevicesAndFoldersAreAsTheyWere) {
  const TierLab lab;
  (void)lab.make("folder/data", 100);
  ASSERT_EQ(::mkfifo(lab.source("pipe").c_str(), 0600), 0);
  const bool has_device = ::mknod(lab.source("null").c_str(), S_IFCHR | 0600, makedev(1, 3)) == 0;
  std::filesystem::create_symlink("loop", lab.source("loop"));
  std::filesystem::create_symlink("/etc/passwd", lab.source("outside"));
  std::filesystem::create_hard_link(lab.source("folder/data"), lab.source("again"));
  lab.fill();
  // The two names of one file have one copy; what lies elsewhere has none.
  EXPECT_EQ(lab.copies().size(), 1U);
  const std::string look =
      "cd " + quoted(lab.source()) + "; (echo through > pipe) & cat pipe; wait; " +
      (has_device ? "cat null | wc -c; " : "") +
      "cat loop; echo $?; cat folder; echo $?; cksum < outside; cat again | cksum; cat folder/data | cksum; "
      "ls | sort; find . -type f | sort; stat -c '%A %s %h' pipe loop folder/data";
  EXPECT_EQ(lab.served(look).out, lab.plain(look).out);
  EXPECT_EQ(lab.tier_command({"settle"}).code, 0);
  EXPECT_EQ(lab.copies().size(), 1U);
}

TEST(OddFiles, ManyInAFolderAreCopiedAndServed) {
  const TierLab lab;
  constexpr int kFiles = 400;
  std::filesystem::create_directory(lab.source("many"));
  for (int i = 0; i < kFiles; ++i) std::ofstream(lab.source("many/" + std::to_string(i))) << i;
  const std::string read_all =
      "python3 -c 'import os, sys\nd = sys.argv[1]\nprint(sum(len(open(d + \"/\" + n, \"rb\").read()) for "
      "n in os.listdir(d)))' " +
      quoted(lab.source("many"));
  lab.fill();
  EXPECT_EQ(lab.copies().size(), static_cast<std::size_t>(kFiles));
  EXPECT_EQ(lab.served(read_all).out, lab.plain(read_all).out);
  const auto total = lab.total();
  EXPECT_EQ(total["hits"], kFiles);
  EXPECT_EQ(total["queued_files"], 0);
}

TEST(RewrittenSource, IsReadAsItIsFourHundredTimesInARowWithItsTimesPutBack) {
  const TierLab lab;
  const std::string file = lab.make("data", 40'000);
  lab.fill();
  std::ofstream(lab.path("rewrite.py")) << "import os, sys\n"
                                           "path = sys.argv[1]\n"
                                           "times = os.stat(path)\n"
                                           "wrong = 0\n"
                                           "for i in range(400):\n"
                                           "    data = (b'%06d' % i) * 6667\n"
                                           "    with open(path, 'r+b') as file: file.write(data)\n"
                                           "    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))\n"
                                           "    for _ in range(3):\n"
                                           "        with open(path, 'rb') as file: wrong += file.read() != data\n"
                                           "    assert os.stat(path).st_mtime_ns == times.st_mtime_ns\n"
                                           "print(wrong)\n";
  // The first read of each turn asks for a copy, which comes between two writes or meets one.
  const Ran ran = lab.served("python3 " + quoted(lab.path("rewrite.py")) + " " + quoted(file));
  EXPECT_EQ(ran.out, "0\n") << ran.err;
  EXPECT_EQ(lab.tier_command({"settle"}).code, 0);
  EXPECT_EQ(lab.served("cksum < " + quoted(file)).out, lab.plain("cksum < " + quoted(file)).out);
  EXPECT_EQ(lab.tier_command({"verify"}).code, 0);
}

TEST(RewrittenSource, ThatIsReplacedWhileItIsReadIsWholeEachTime) {
  const TierLab lab;
  const std::string file = lab.make("data", 100);
  std::ofstream(lab.path("replace.py"))
      << "import os, sys\n"
         "path, readers = sys.argv[1], []\n"
         "for _ in range(3):\n"
         "    child = os.fork()\n"
         "    if child == 0:\n"
         "        bad = 0\n"
         "        for _ in range(600):\n"
         "            with open(path, 'rb') as file: data = file.read()\n"
         "            bad += len(set(data)) != 1 or len(data) != 1000 + data[0]\n"
         "        os._exit(min(bad, 100))\n"
         "    readers.append(child)\n"
         "turn = 0\n"
         "while readers:\n"
         "    turn += 1\n"
         "    with open(path + '.new', 'wb') as file: file.write(bytes([turn % 250]) * (1000 + turn % 250))\n"
         "    os.rename(path + '.new', path)\n"
         "    done, status = os.waitpid(-1, os.WNOHANG)\n"
         "    if done: readers.remove(done); print(status)\n";
  std::ofstream(file, std::ios::binary) << std::string(1001, '\1');
  const Ran ran = lab.served("python3 " + quoted(lab.path("replace.py")) + " " + quoted(file));
  EXPECT_EQ(ran.out, "0\n0\n0\n") << ran.err;
}

TEST(NoDescriptors, AProgramGetsAsManyAsWithoutTiers) {
  const TierLab lab;
  const std::string file = lab.make("data", 1000);
  const std::string fresh = lab.make("fresh", 1000, 2);
  const std::string use_up =
      "python3 -c 'import os, resource, sys\n"
      "resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))\n"
      "held = []\n"
      "try:\n"
      "    while True:\n"
      "        fd = os.open(sys.argv[1 + len(held) % 2], os.O_RDONLY)\n"
      "        held.append(fd)\n"
      "except OSError as error: print(len(held), error.errno, held)\n"
      "print([len(os.read(fd, 5000)) for fd in held])' " +
      quoted(file) + " " + quoted(fresh);
  const std::string expected = lab.plain(use_up).out;
  EXPECT_EQ(lab.served(use_up).out, expected);  // Cold.
  lab.fill();
  EXPECT_EQ(lab.served(use_up).out, expected);  // Warm.
  // Copies that are none: the source's descriptor is all there is.
  ASSERT_EQ(lab.tier_command({"stop"}).code, 0);
  for (const std::string& copy : lab.copies()) {
    std::filesystem::remove(copy);
    std::ofstream(copy) << "half";
  }
  EXPECT_EQ(lab.served(use_up).out, expected);
}

TEST(NoDescriptors, AKeeperWithoutThemLosesCopiesAndNothingElse) {
  const TierLab lab;
  for (int i = 0; i < 30; ++i) (void)lab.make("f" + std::to_string(i), 20'000, static_cast<unsigned>(i));
  const std::string read_all = "cat " + quoted(lab.source()) + "/* | cksum";
  // Whoever runs the tests may have left them descriptors, which each program here inherits; ls shows four of its own.
  const int inherited = std::stoi(lab.plain("ls /proc/self/fd | wc -l").out) - 4;
  for (const int own : {8, 9, 10, 11, 12, 13, 14, 16}) {
    const int limit = own + inherited;
    const Ran ran = lab.run({"/bin/sh", "-c",
                             "ulimit -n " + std::to_string(limit) + "; '" FRESHET_PROGRAM "' tier run -- " +
                                 "/bin/sh -c \"" + read_all + "\""});
    EXPECT_EQ(ran.out, lab.plain(read_all).out) << limit << "\n" << ran.err;
    EXPECT_EQ(lab.tier_command({"stop"}).code, 0);
    EXPECT_EQ(lab.tier_command({"verify"}).code, 0) << limit;
    // One that could not be reached ends by itself.
    EXPECT_TRUE(came_true([&] { return !lab.total()["keeper_pid"].is_number(); })) << limit;
  }
  lab.fill();
  EXPECT_EQ(lab.copies().size(), 30U);
}

}  // namespace
}  // namespace freshet::test
