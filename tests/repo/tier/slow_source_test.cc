// SPDX-License-Identifier: Apache-2.0
// A source, or a tier, that is slow and that fails in the middle: the program gets the source's bytes, or the source's
// error.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <vector>

#include "tests/repo/tier/support/slow_lab.h"
#include "tests/support/this_build.h"

namespace freshet::test {
namespace {

#define SKIP_WITHOUT(lab) \
  if (!(lab)) GTEST_SKIP() << (lab).why_not()

nlohmann::json first_tier(SlowLab& lab) {
  const Ran said = lab->tier_command({"stat", "--json"});
  return nlohmann::json::parse(said.out.substr(0, said.out.find('\n')));
}

/// Reads a file by python's read(), and prints the bytes' number or the errno.
std::string read_command(const std::string& file) {
  return "python3 -c 'import os\nfd = os.open(\"" + file +
         "\", os.O_RDONLY)\nn = 0\ntry:\n    while data := os.read(fd, 65536): n += len(data)\n    print(n)\nexcept "
         "OSError as "
         "error: print(\"errno\", error.errno)'";
}

TEST(SlowSource, IsNotAskedAgainForEachProgramThatWaits) {
  SlowLab lab({.more = "first_open = \"wait\"", .cached = false, .latency = std::chrono::milliseconds(1)});
  SKIP_WITHOUT(lab);
  constexpr int kFiles = 40;
  for (int i = 0; i < kFiles; ++i) (void)lab->make("f" + std::to_string(i), 10'000, static_cast<unsigned>(i));
  ASSERT_TRUE(lab.slow().reset());
  // Eight that wait at a time, each of which is woken by every copy.
  const Ran ran = lab->served("for k in 0 1 2 3 4 5 6 7; do (for i in 0 1 2 3 4; do cat '" + lab->source() +
                              "'/f$((k * 5 + i)); done | wc -c) & done; wait");
  EXPECT_EQ(ran.out, "50000\n50000\n50000\n50000\n50000\n50000\n50000\n50000\n");
  ASSERT_EQ(lab->tier_command({"settle"}).code, 0);
  EXPECT_EQ(lab->total()["hits"], kFiles);
  EXPECT_EQ(lab->total()["source_read_bytes"], kFiles * 10'000);
  // The program's open of each file, the keeper's, and at most one more.
  EXPECT_LE(lab.slow().counters().value().opens, 3U * kFiles);
}

TEST(SlowSource, IsReadOnceForItsCopyAndNotAtAllFromThenOn) {
  SlowLab lab;
  SKIP_WITHOUT(lab);
  const std::string file = lab->make("data", 500'000);
  lab.forget_and_count();
  EXPECT_EQ(lab->served("cat '" + file + "' | wc -c").out, "500000\n");
  ASSERT_EQ(lab->tier_command({"settle"}).code, 0);
  // The kernel's cache gives the copier what the program read.
  EXPECT_EQ(lab.slow().counters().value().bytes, 500'000U);
  lab.forget_and_count();
  EXPECT_EQ(lab->served("cat '" + file + "' | wc -c").out, "500000\n");
  const SlowCounters asked = lab.slow().counters().value();
  EXPECT_EQ(asked.bytes, 0U);
  EXPECT_EQ(asked.opens, 0U);
  EXPECT_EQ(asked.reads, 0U);
}

TEST(SlowSource, ErrorsInTheMiddleReachTheProgramAndLeaveNoCopy) {
  SlowLab lab({.cached = false});
  SKIP_WITHOUT(lab);
  const std::string file = lab->make("data", 3'000'000);
  ASSERT_TRUE(lab.slow().fail_on("read", EIO, "data", 1));
  const Ran plain = lab->plain(read_command(file));
  EXPECT_EQ(plain.out, "errno 5\n");
  // That fault let one read work, once; from here on none does.
  EXPECT_EQ(lab->served(read_command(file)).out, "errno 5\n");
  ASSERT_EQ(lab->tier_command({"settle"}).code, 0);
  EXPECT_TRUE(lab->copies().empty());
  EXPECT_EQ(first_tier(lab)["state"], "ok");
  EXPECT_EQ(first_tier(lab)["used_bytes"], 0);
  ASSERT_TRUE(lab.slow().heal());
  lab->fill();
  EXPECT_EQ(lab->copies().size(), 1U);
  EXPECT_EQ(lab->served(read_command(file)).out, "3000000\n");
}

TEST(SlowSource, ThatFailsIsSaidOnceByRun) {
  SlowLab lab({.cached = false});
  SKIP_WITHOUT(lab);
  for (int i = 0; i < 5; ++i) (void)lab->make("f" + std::to_string(i), 200'000);
  ASSERT_TRUE(lab.slow().fail_on("read", EIO, "*"));
  const Ran ran =
      lab->served("cat '" + lab->source() + "'/* > /dev/null; LD_PRELOAD= '" FRESHET_PROGRAM "' tier settle");
  std::istringstream lines(ran.err);
  int ours = 0;
  for (std::string line; std::getline(lines, line);) ours += line.starts_with("freshet tier: ") ? 1 : 0;
  EXPECT_EQ(ours, 1) << ran.err;
  EXPECT_NE(ran.err.find("the source failed"), std::string::npos) << ran.err;
}

TEST(SlowSource, CutShortIsNoCopy) {
  SlowLab lab({.cached = false});
  SKIP_WITHOUT(lab);
  const std::string file = lab->make("data", 300'000);
  ASSERT_TRUE(lab.slow().cut("data", 100'000));
  EXPECT_EQ(lab->served(read_command(file)).out, "100000\n");
  ASSERT_EQ(lab->tier_command({"settle"}).code, 0);
  EXPECT_TRUE(lab->copies().empty());
}

TEST(SlowSource, ErrorsOfOpensAndLooksAreTheSources) {
  SlowLab lab({.cached = false});
  SKIP_WITHOUT(lab);
  const std::string file = lab->make("data", 3000);
  lab->fill();
  ASSERT_EQ(lab->copies().size(), 1U);
  const std::string look = "python3 -c 'import os\nfor i in range(3):\n    try: print(len(open(\"" + file +
                           "\", \"rb\").read()))\n    except OSError as error: print(error.errno)'";
  for (const int error : {EACCES, ESTALE, EIO, ENOENT}) {
    ASSERT_TRUE(lab.slow().fail_on("lookup", error, "data"));
    const Ran plain = lab->plain(look);
    EXPECT_EQ(lab->served(look).out, plain.out) << error;
    EXPECT_EQ(plain.out, std::to_string(error) + "\n" + std::to_string(error) + "\n" + std::to_string(error) + "\n");
    ASSERT_TRUE(lab.slow().heal());
  }
  EXPECT_EQ(lab->served(look).out, "3000\n3000\n3000\n");
}

TEST(SlowSource, CopiesAreServedThoughItsReadsFail) {
  SlowLab lab({.cached = false});
  SKIP_WITHOUT(lab);
  const std::string file = lab->make("data", 300'000);
  lab->fill();
  ASSERT_TRUE(lab.slow().fail_on("read", EIO, "*"));
  EXPECT_EQ(lab->served(read_command(file)).out, "300000\n");
}

/// What a tier may do: each makes it off, once, and the source is read.
TEST(SlowTier, ThatFailsIsOffAndTheNextOneTakesOver) {
  struct Way {
    const char* operation;
    int error;
    const char* reason;
  };
  const Way ways[] = {{"write", ENOSPC, "No space left"},         {"write", EIO, "Input/output error"},
                      {"create", EROFS, "Read-only file system"}, {"setxattr", ENOTSUP, "not supported"},
                      {"fsync", EIO, "Input/output error"},       {"rename", EDQUOT, "quota"}};
  SlowLab lab({.tiers = 2, .slow_tier = true});
  SKIP_WITHOUT(lab);
  unsigned seed = 0;
  for (const Way& way : ways) {
    const std::string file = lab->make("data", 200'000, ++seed);
    ASSERT_TRUE(lab.slow().fail_on(way.operation, way.error, "*"));
    const Ran ran = lab->served("sha256sum < '" + file + "'; LD_PRELOAD= '" FRESHET_PROGRAM "' tier settle");
    EXPECT_EQ(ran.out, lab.sum_of(file)) << way.operation;
    EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 1) << ran.err;
    const auto tier = first_tier(lab);
    EXPECT_EQ(tier["state"], "off") << way.operation;
    EXPECT_NE(tier["reason"].get<std::string>().find(way.reason), std::string::npos) << tier["reason"];
    EXPECT_EQ(lab->served("sha256sum < '" + file + "'").out, lab.sum_of(file)) << way.operation;
    // It works again: a new keeper finds that out at once, and no half copy.
    ASSERT_EQ(lab->tier_command({"stop"}).code, 0);
    ASSERT_TRUE(lab.slow().heal());
    lab->fill();
    EXPECT_EQ(first_tier(lab)["state"], "ok") << way.operation;
    EXPECT_EQ(lab->tier_command({"verify"}).code, 0) << way.operation;
    for (const auto& entry : std::filesystem::directory_iterator(lab->tier())) {
      EXPECT_FALSE(entry.path().filename().string().starts_with(".freshet-copy-")) << entry.path();
    }
  }
}

/// The keeper dies before the n-th time that it does one thing to its tier, for each thing and some n: what it left is
/// swept, the next keeper goes on, and nothing that is half is read.
TEST(SlowTier, WhoseKeeperDiesAtEachStepHasWholeCopiesOnly) {
  SlowLab lab({.slow_tier = true});
  SKIP_WITHOUT(lab);
  constexpr int kFiles = 3;
  for (int i = 0; i < kFiles; ++i) (void)lab->make("f" + std::to_string(i), 300'000, static_cast<unsigned>(i));
  const std::string read_all = "cat '" + lab->source() + "'/* | sha256sum";
  const std::string expected = lab->plain(read_all).out;
  // Each round starts a dozen programs, which a sanitizer makes slow. The plain build kills at all of these.
  const std::vector<std::uint64_t> afters =
      under_sanitizer() ? std::vector<std::uint64_t>{1, 4} : std::vector<std::uint64_t>{0, 1, 2, 4, 7};
  for (const char* step : {"mkdir", "create", "write", "setattr", "setxattr", "fsync", "rename"}) {
    for (const std::uint64_t after : afters) {
      ASSERT_EQ(lab->tier_command({"drop"}).code, 0);
      ASSERT_EQ(lab->tier_command({"stop"}).code, 0);
      ASSERT_TRUE(lab.slow().kill_on(step, "*", after));
      const Ran ran = lab->served(read_all + "; LD_PRELOAD= '" FRESHET_PROGRAM "' tier settle; " + read_all);
      EXPECT_EQ(ran.out, expected + expected) << step << " " << after;
      // Whatever is there by now, before the next keeper, is whole.
      EXPECT_EQ(lab->tier_command({"verify"}).code, 0) << step << " " << after;
      EXPECT_EQ(lab->run({"/bin/sh", "-c", "LD_PRELOAD='" FRESHET_TIER_READER "' " + read_all}).out, expected);
      ASSERT_TRUE(lab.slow().heal());
      lab->fill();
      EXPECT_EQ(lab->copies().size(), static_cast<std::size_t>(kFiles)) << step << " " << after;
      ASSERT_EQ(lab->tier_command({"stop"}).code, 0);
      for (const auto& entry : std::filesystem::directory_iterator(lab->tier())) {
        const std::string name = entry.path().filename().string();
        EXPECT_FALSE(name.starts_with(".freshet-copy-") || name.ends_with(".tmp"))
            << name << " " << step << " " << after;
      }
    }
  }
}

TEST(SlowTier, WhoseCopiesCannotBeOpenedIsPassedBy) {
  SlowLab lab({.slow_tier = true, .cached = false});
  SKIP_WITHOUT(lab);
  const std::string file = lab->make("data", 200'000);
  lab->fill();
  ASSERT_EQ(lab->copies().size(), 1U);
  for (const char* operation : {"open", "lookup", "getattr", "any"}) {
    for (const int error : {EIO, EACCES, ESTALE}) {
      ASSERT_TRUE(lab.slow().fail_on(operation, error, "*"));
      EXPECT_EQ(lab->served("sha256sum < '" + file + "'").out, lab.sum_of(file)) << operation << " " << error;
      ASSERT_TRUE(lab.slow().heal());
    }
  }
}

/// The mount answers for a while. Only statfs(2) tells when it no longer does: the kernel keeps a dead mount's
/// attributes.
TEST(SlowTier, ThatDiesUnderItsReadersIsPassedByAtTheNextOpen) {
  SlowLab lab({.slow_tier = true});
  SKIP_WITHOUT(lab);
  const std::string file = lab->make("data", 200'000);
  lab->fill();
  const std::string fuse_answers = "[ \"$(stat -f -c %t '" + lab->tier() + "' 2> /dev/null)\" = 65735546 ]";
  const Ran ran =
      lab->served(fuse_answers + " && sha256sum < '" + file + "'; kill -9 " + std::to_string(lab.slow().pid()) +
                  "; while " + fuse_answers + "; do :; done; " + "sha256sum < '" + file + "'");
  EXPECT_EQ(ran.out, lab.sum_of(file) + lab.sum_of(file)) << ran.err;
}

}  // namespace
}  // namespace freshet::test
