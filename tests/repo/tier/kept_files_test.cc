// SPDX-License-Identifier: Apache-2.0
// A file that a program keeps open: its descriptor moves to the copy inside pread(), when nobody can tell.

#include <gtest/gtest.h>

#include <fstream>

#include "tests/repo/tier/support/lab.h"

namespace freshet::test {
namespace {

/// Opens a file before its copy is there, does `before`, has it copied, reads it at offsets, does `after`, and prints
/// whether the descriptor moved. `fd` is the descriptor, `path` the file, `tier` the tier.
class KeptFiles : public testing::Test {
 protected:
  std::string ran(const std::string& before, const std::string& after = "",
                  const std::string& read = "os.pread(fd, 1000, 500)") {
    std::ofstream(lab_.path("keep.py"))
        << "import fcntl, os, select, socket, subprocess, sys, threading\n"
           "path, tier, program = sys.argv[1:]\n"
           "def plain(*words):\n"
           "    rest = {name: value for name, value in os.environ.items() if name != 'LD_PRELOAD'}\n"
           "    subprocess.run([program, 'tier', *words], check=True, env=rest)\n"
           "def moved(fd): return os.readlink('/proc/self/fd/%d' % fd).startswith(tier)\n"
           "fd = os.open(path, os.O_RDONLY)\n"
           "assert not moved(fd)\n"
           "def right(data, at): return data == expected[at:at + len(data)] and len(data) > 0\n"
           "expected = open(path, 'rb').read()\n"
           "assert len(expected) == 100000\n"
        << before << "\nplain('settle')\nassert right(" << read << ", 500)\nprint(moved(fd))\n"
        << after << "\n";
    EXPECT_EQ(lab_.tier_command({"drop"}).code, 0);
    const Ran got = lab_.served("python3 '" + lab_.path("keep.py") + "' '" + file_ + "' '" + lab_.tier() +
                                "' '" FRESHET_PROGRAM "'");
    EXPECT_EQ(got.code, 0) << got.err;
    return got.out;
  }

  const TierLab lab_;
  const std::string file_ = lab_.make("data", 100'000, 3);
};

TEST_F(KeptFiles, MoveInsideAReadAtAnOffset) {
  // Its own offset, its flags and what fstat() says stay as they were.
  EXPECT_EQ(ran("info = os.fstat(fd)\nassert right(os.read(fd, 700), 0)\nflags = fcntl.fcntl(fd, fcntl.F_GETFL), "
                "fcntl.fcntl(fd, fcntl.F_GETFD)",
                "assert os.lseek(fd, 0, os.SEEK_CUR) == 700\nassert right(os.read(fd, 100), 700)\n"
                "assert os.fstat(fd)[:7] == info[:7] and os.fstat(fd).st_ctime_ns == info.st_ctime_ns\n"
                "assert flags == (fcntl.fcntl(fd, fcntl.F_GETFL), fcntl.fcntl(fd, fcntl.F_GETFD))\n"
                "assert os.pread(fd, 1 << 20, 0) == expected"),
            "True\n");
}

TEST_F(KeptFiles, MoveInsideEachReadThatNamesItsOffset) {
  for (const char* read : {"(lambda room: bytes(room[:os.preadv(fd, [room], 500)]))(bytearray(1000))",
                           "(lambda room: bytes(room[:os.preadv(fd, [room], 500, 0)]))(bytearray(1000))"}) {
    EXPECT_EQ(ran("", "", read), "True\n") << read;
  }
}

TEST_F(KeptFiles, StayWhereSomebodyCouldTell) {
  const std::pair<const char*, const char*> cases[] = {
      {"other = os.dup(fd)", "os.read(other, 10); assert os.lseek(fd, 0, os.SEEK_CUR) == 10"},
      {"other = 200\nos.dup2(fd, other)", "os.read(other, 10); assert os.lseek(fd, 0, os.SEEK_CUR) == 10"},
      {"other = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 100)",
       "os.read(other, 10); assert os.lseek(fd, 0, os.SEEK_CUR) == 10"},
      {"ask, answer = socket.socketpair()\nchild = os.fork()\n"
       "if child == 0: ask.recv(1); os.read(fd, 10); os._exit(0)",
       "answer.send(b'x'); os.waitpid(child, 0); assert os.lseek(fd, 0, os.SEEK_CUR) == 10"},
      {"stop = threading.Event()\nthread = threading.Thread(target=stop.wait)\nthread.start()", "stop.set()"},
      {"fcntl.flock(fd, fcntl.LOCK_SH)",
       "writer = os.open(path, os.O_RDWR)\ntry: fcntl.flock(writer, fcntl.LOCK_EX | fcntl.LOCK_NB); assert 0\n"
       "except BlockingIOError: pass"},
  };
  for (const auto& [before, after] : cases) EXPECT_EQ(ran(before, after), "False\n") << before;
  // A child does not move what it has from its parent.
  EXPECT_EQ(ran("child = os.fork()\nif child != 0: os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"),
            "False\n");
}

TEST_F(KeptFiles, StayWhereTheKernelKnowsOfADuplicate) {
#if defined(__x86_64__)
  const std::string ask = "import ctypes\nc = ctypes.CDLL(None, use_errno=True)\n";
  // A duplicate that the reader did not see being made, by dup(2) itself.
  if (lab_.plain("python3 -c '" + ask + "print(c.syscall(312, " + "c.getpid(), c.getpid(), 0, 1, 1))'").out != "0\n")
    GTEST_SKIP() << "the kernel compares no open files here (kcmp)";
  EXPECT_EQ(ran(ask + "other = c.syscall(32, fd)\nassert other >= 0",
                "os.read(other, 10); assert os.lseek(fd, 0, os.SEEK_CUR) == 10"),
            "False\n");
#endif
}

TEST_F(KeptFiles, StayWhenReadAtTheirOwnOffset) {
  EXPECT_EQ(ran("", "", "(os.lseek(fd, 500, 0), os.read(fd, 1000))[1]"), "False\n");
  EXPECT_EQ(
      ran("os.lseek(fd, 500, 0)", "", "(lambda room: bytes(room[:os.preadv(fd, [room], -1, 0)]))(bytearray(1000))"),
      "False\n");
}

TEST_F(KeptFiles, AreNoOtherFileThatGotTheirNumber) {
  // Closed and opened again where the reader does not see it: by the C library itself.
  const std::string other = lab_.path("other");
  std::ofstream(other) << std::string(2000, 'o');
#if defined(__x86_64__)
  EXPECT_EQ(ran("import ctypes\nc = ctypes.CDLL(None)\nc.syscall(3, fd)\nassert c.syscall(257, -100, b'" + other +
                "', 0) == fd\nexpected = b'o' * 2000"),
            "False\n");
#endif
  // Changed at the source since it was opened.
  EXPECT_EQ(ran("with open(path, 'r+b') as out: out.write(b'new')\nexpected = os.pread(fd, 1 << 20, 0)"), "False\n");
}

}  // namespace
}  // namespace freshet::test
