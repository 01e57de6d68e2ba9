// SPDX-License-Identifier: Apache-2.0
// What only the source can do, through a descriptor of a copy: writes by another name, locks of all who share it,
// execution.

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "tests/repo/tier/support/lab.h"

namespace freshet::test {
namespace {

class SourceCalls : public testing::Test {
 protected:
  /// A program that has `fd`, a descriptor of the copy of `path`; without tiers it prints the same.
  void same(const std::string& text) {
    std::ofstream(lab_.path("call.py")) << "import ctypes, errno, fcntl, os, signal, subprocess, sys\n"
                                           "path = sys.argv[1]\n"
                                           "fd = os.open(path, os.O_RDONLY)\n"
                                           "def locked():\n"
                                           "    other = os.open(path, os.O_RDWR)\n"
                                           "    try: fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
                                           "    except BlockingIOError: return True\n"
                                           "    finally: os.close(other)\n"
                                           "    return False\n"
                                        << text << "\n";
    const std::string command = "python3 '" + lab_.path("call.py") + "' '" + file_ + "'";
    make_(file_);
    const Ran expected = lab_.plain(command);
    EXPECT_EQ(expected.code, 0) << expected.err;
    make_(file_);
    lab_.fill();
    ASSERT_EQ(lab_.copies().size(), 1U);
    const Ran got = lab_.served(command);
    EXPECT_EQ(got.out, expected.out) << got.err;
    EXPECT_EQ(got.code, expected.code) << got.err;
    EXPECT_EQ(lab_.tier_command({"verify"}).code, 0) << text;
  }

  const TierLab lab_;
  const std::string file_ = lab_.make("data", 2000, 3);
  std::function<void(const std::string&)> make_ = [](const std::string& file) {
    std::ofstream(file) << std::string(2000, 'd');
  };
};

TEST_F(SourceCalls, WriteThroughANameOfADescriptorGoesToTheSource) {
  const std::string own = "name = '/proc/self/fd/%d' % fd\n";
  const std::string look = "\nprint(open(path, 'rb').read()[:10], os.stat(path).st_size)";
  for (const char* way :
       {"out = os.open(name, os.O_WRONLY)\nos.write(out, b'new')",
        "out = os.open(name, os.O_RDWR | os.O_TRUNC)\nos.write(out, b'short')",
        "os.close(os.open(name, os.O_RDONLY | os.O_TRUNC))", "with open(name, 'ab') as out: out.write(b'more')",
        "c = ctypes.CDLL(None)\nc.fopen.restype = ctypes.c_void_p\nstream = c.fopen(name.encode(), b'r+')\n"
        "c.fputs(b'stream', ctypes.c_void_p(stream))\nc.fclose(ctypes.c_void_p(stream))"}) {
    same(own + way + look);
  }
  same("name = '/dev/fd/%d' % fd\nout = os.open(name, os.O_WRONLY)\nos.write(out, b'new')" + look);
  same(
      "name = '/proc/%d/fd/%d' % (os.getpid(), fd)\nsubprocess.run(['sh', '-c', 'echo shell > \"$0\"', name], "
      "check=True)" +
      look);
  // A file that took the path since is another one.
  lab_.fill();
  const Ran got = lab_.served(
      "python3 -c 'import os, sys\nfd = os.open(sys.argv[1], 0)\nopen(sys.argv[1] + \"2\", \"w\").write(\"other\")\n"
      "os.rename(sys.argv[1] + \"2\", sys.argv[1])\ntry: os.open(\"/proc/self/fd/%d\" % fd, os.O_RDWR | os.O_TRUNC)\n"
      "except OSError as error: print(error.errno)\nprint(open(sys.argv[1]).read())' '" +
      file_ + "'");
  EXPECT_EQ(got.out, "116\nother\n") << got.err;
}

TEST_F(SourceCalls, LocksOfDuplicatesHold) {
  same(
      "other = os.dup(fd)\nfcntl.flock(other, "
      "fcntl.LOCK_EX)\nos.close(other)\nprint(locked())\nos.close(fd)\nprint(locked())");
  same(
      "other = os.dup(fd)\nfcntl.flock(fd, fcntl.LOCK_EX)\nos.close(fd)\nprint(locked())\nos.read(other, "
      "5)\nprint(os.lseek(other, 0, 1))");
  // The kernel ends a lock of the process when the process closes any descriptor of the file.
  same(
      "writer = os.open(path, os.O_RDWR)\nfcntl.lockf(writer, fcntl.LOCK_EX)\nfolder, name = os.path.split(path)\n"
      "again = os.open(folder + '/./' + name, os.O_RDONLY)\nos.pread(again, 5, 0)\n"
      "child = os.fork()\nif child == 0:\n    try: fcntl.lockf(writer, fcntl.LOCK_EX | fcntl.LOCK_NB)\n    except "
      "OSError: os._exit(7)\n    os._exit(0)\n"
      "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))");
  // Its offset stays shared.
  same("other = os.dup(fd)\nfcntl.flock(fd, fcntl.LOCK_SH)\nos.read(other, 7)\nprint(os.lseek(fd, 0, 1))");
}

TEST_F(SourceCalls, ALockOfTheProcessConcernsTheFileItIsOnAlone) {
  const std::string other = lab_.make("other", 3000, 4);
  lab_.fill();
  std::ofstream(lab_.path("locks.py")) << "import fcntl, os, sqlite3, sys\n"
                                          "path, other, outside, tier = sys.argv[1:]\n"
                                          "def served(path):\n"
                                          "    fd = os.open(path, os.O_RDONLY)\n"
                                          "    try: return os.readlink('/proc/self/fd/%d' % fd).startswith(tier)\n"
                                          "    finally: os.close(fd)\n"
                                          "base = sqlite3.connect(outside + '.db')\n"
                                          "base.execute('create table t (x)'); base.execute('begin immediate')\n"
                                          // More than the reader has room for, had it to remember them.
                                          "held = [open(outside + str(i), 'w') for i in range(200)]\n"
                                          "for file in held: fcntl.lockf(file, fcntl.LOCK_EX)\n"
                                          "print(served(path), served(other))\n"
                                          "fcntl.lockf(os.open(path, os.O_RDONLY), fcntl.LOCK_UN)\n"
                                          "print(served(path))\n"
                                          "writer = os.open(path, os.O_RDWR)\n"
                                          "fcntl.lockf(writer, fcntl.LOCK_EX)\n"
                                          "print(served(path), served(other))\n";
  const Ran got = lab_.served("python3 '" + lab_.path("locks.py") + "' '" + file_ + "' '" + other + "' '" +
                              lab_.path("outside") + "' '" + lab_.tier() + "'");
  EXPECT_EQ(got.out, "True True\nTrue\nFalse True\n") << got.err;
  EXPECT_EQ(lab_.tier_command({"drop"}).code, 0);
  std::filesystem::remove(other);
  // A descriptor that goes back to a file which is locked already ends no lock.
  same(
      "again = os.open(path, os.O_RDONLY)\nwriter = os.open(path, os.O_RDWR)\nfcntl.lockf(writer, fcntl.LOCK_EX)\n"
      "os.listxattr(again)\nchild = os.fork()\nif child == 0:\n    try: fcntl.lockf(writer, fcntl.LOCK_EX | "
      "fcntl.LOCK_NB)\n    except OSError: os._exit(7)\n    os._exit(0)\n"
      "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))");
}

TEST_F(SourceCalls, ALockThatTheParentWouldNotHaveIsRefused) {
  lab_.fill();
  const std::string lock = "exec 9< '" + file_ + "'; flock -n 9; echo $?; flock -n '" + file_ + "' echo free";
  EXPECT_EQ(lab_.plain(lock).out, "0\n");
  const Ran got = lab_.served(lock);
  EXPECT_NE(got.out.substr(0, 2), "0\n") << got.out;
  EXPECT_NE(got.err.find("No locks available"), std::string::npos) << got.err;
  // A lock of the process, not of the open file, is the child's in any case.
  same(
      "child = os.fork()\nif child == 0:\n    fcntl.lockf(fd, fcntl.LOCK_SH)\n    print('child', flush=True)\n    "
      "os._exit(0)\nos.waitpid(child, 0)");
}

TEST_F(SourceCalls, WhatGoesBackBeforeItIsReadIsNoHit) {
  struct Way {
    const char* text;
    int hits;
  };
  const Way ways[] = {
      {"fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)\nos.read(fd, 5)\nfcntl.flock(fd, fcntl.LOCK_UN)", 0},
      {"fcntl.flock(os.dup(fd), fcntl.LOCK_SH)", 0},
      {"fcntl.lockf(fd, fcntl.LOCK_SH)\nfcntl.lockf(fd, fcntl.LOCK_UN)", 0},
      {"os.listxattr(fd)\nos.read(fd, 5)", 0},
      {"os.read(fd, 5)\nfcntl.flock(fd, fcntl.LOCK_SH)", 1},
      {"os.close(os.dup(fd))\nos.read(fd, 5)", 1},
      // Of the process that opened the file alone.
      {"child = os.fork()\nif child == 0:\n    fcntl.lockf(fd, fcntl.LOCK_SH)\n    os._exit(0)\nos.waitpid(child, 0)",
       1},
  };
  lab_.fill();
  for (const Way& way : ways) {
    std::ofstream(lab_.path("lock.py")) << "import fcntl, os, sys\nfd = os.open(sys.argv[1], os.O_RDONLY)\n"
                                        << way.text << "\n";
    const Ran ran =
        lab_.tier_command({"run", "--report", lab_.path("report"), "--", "python3", lab_.path("lock.py"), file_});
    EXPECT_EQ(ran.code, 0) << ran.err;
    std::ifstream in(lab_.path("report"));
    const auto report = nlohmann::json::parse(in, nullptr, false);
    EXPECT_EQ(report["opens"], 1) << way.text;
    EXPECT_EQ(report["hits"], way.hits) << way.text;
    EXPECT_EQ(report["misses"], 1 - way.hits) << way.text;
    EXPECT_EQ(report["hit_bytes"], 2000 * way.hits) << way.text;
    EXPECT_EQ(report["miss_bytes"], 2000 * (1 - way.hits)) << way.text;
    EXPECT_EQ(report["epochs"][0]["hits"], way.hits) << way.text;
    EXPECT_EQ(report["epochs"][0]["miss_bytes"], 2000 * (1 - way.hits)) << way.text;
  }
}

TEST_F(SourceCalls, WhatChangesAFileChangesTheSource) {
  const std::string look =
      "\ninfo = os.stat(path)\nprint(oct(info.st_mode), info.st_uid, info.st_size, os.read(fd, 9))";
  for (const char* way : {
           "os.fchmod(fd, 0o640)",
           "os.fchown(fd, -1, -1)\nos.fchmod(fd, 0o604)",
           "os.utime(fd, ns=(10**18 + 5, 10**18 + 7))\nprint(os.stat(path).st_mtime_ns)",
           "os.utime(fd, (5, 7))\nprint(os.stat(path).st_mtime_ns)",
           "os.setxattr(fd, 'user.x', b'y')\nprint(os.getxattr(path, 'user.x'), os.getxattr(fd, 'user.x'))\n"
           "print(sorted(name for name in os.listxattr(fd) if name.startswith('user.')))\nos.removexattr(fd, "
           "'user.x')\n"
           "print(os.listxattr(path))",
           "import struct\nlock = struct.pack('hhqqi', fcntl.F_RDLCK, 0, 0, 0, 0)\n"
           "fcntl.fcntl(fd, 37, lock)\nwriter = os.open(path, os.O_RDWR)\n"  // F_OFD_SETLK
           "try: fcntl.fcntl(writer, 37, struct.pack('hhqqi', fcntl.F_WRLCK, 0, 0, 0, 0))\n"
           "except BlockingIOError: print('locked')\n"
           "got = struct.unpack('hhqqi', fcntl.fcntl(writer, 36, struct.pack('hhqqi', fcntl.F_WRLCK, 0, 0, 0, 0)))\n"
           "print(got[0] == fcntl.F_RDLCK, got[4])",  // F_OFD_GETLK
           "c = ctypes.CDLL(None)\nroom = ctypes.create_string_buffer(256)\n"
           "print(c.fstatat(fd, b'', room, 0x1000), int.from_bytes(room.raw[8:16], 'little') == os.stat(path).st_ino)",
       }) {
    same(way + look);
  }
}

TEST_F(SourceCalls, ACopyThatIsAProgramRuns) {
  make_ = [](const std::string& file) {
    std::ofstream(file) << std::ifstream("/bin/true", std::ios::binary).rdbuf();
    ASSERT_EQ(::chmod(file.c_str(), 0755), 0);
  };
  same(
      "child = os.fork()\nif child == 0: os.execve(fd, ['true'], "
      "{})\nprint(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))");
}

}  // namespace
}  // namespace freshet::test
