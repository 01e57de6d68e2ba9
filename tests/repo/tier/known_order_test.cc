// SPDX-License-Identifier: Apache-2.0
// What programs tell of their order: the books, and the keeper that goes by them.

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "repo/tier/keeper/lookahead.h"
#include "repo/tier/keeper/reserve.h"
#include "repo/tier/tier_folder.h"
#include "tests/repo/tier/support/lab.h"

namespace freshet::test {
namespace {

using tier::Lookahead;
using tier::Reserve;

std::string next_of(Lookahead& ahead) { return ahead.has_next() ? ahead.next().path : ""; }

TEST(Lookahead, GivesEachStreamItsOrderAndItsTurn) {
  Lookahead ahead;
  const auto one = *ahead.begin();
  const auto two = *ahead.begin();
  for (const char* path : {"/a", "/b", "/c"}) ASSERT_TRUE(ahead.tell(one, path));
  for (const char* path : {"/x", "/y"}) ASSERT_TRUE(ahead.tell(two, path));
  EXPECT_EQ(ahead.waiting(), 5U);
  std::string all;
  while (ahead.has_next()) all += next_of(ahead);
  EXPECT_EQ(all, "/a/x/b/y/c");
  EXPECT_FALSE(ahead.is_empty());
  ahead.end(one);
  ahead.leave(two);
  EXPECT_TRUE(ahead.is_empty());
  ASSERT_TRUE(ahead.tell(two, "/z"));
  EXPECT_FALSE(ahead.has_next());
}

TEST(Lookahead, ForgetsWhatIsBehindTheProgram) {
  Lookahead ahead;
  const auto stream = *ahead.begin();
  for (const char* path : {"/a", "/b", "/c", "/d", "/b", "/e"}) ASSERT_TRUE(ahead.tell(stream, path));
  const Lookahead::Told first = ahead.next();
  const Lookahead::Told second = ahead.next();
  EXPECT_EQ(first.path + second.path, "/a/b");
  EXPECT_FALSE(ahead.missed("/nothing"));
  EXPECT_TRUE(ahead.missed("/c"));
  // Who comes back with what lies behind by now, comes too late.
  ahead.put_back(first);
  EXPECT_EQ(next_of(ahead), "/d");
  EXPECT_EQ(next_of(ahead), "/b");
  ahead.anew(stream);
  EXPECT_FALSE(ahead.has_next());
  EXPECT_FALSE(ahead.is_empty());
}

TEST(Lookahead, KeepsTheOrderOfWhatIsPutBack) {
  Lookahead ahead;
  const auto stream = *ahead.begin();
  for (const char* path : {"/a", "/b", "/c", "/d"}) ASSERT_TRUE(ahead.tell(stream, path));
  const Lookahead::Told a = ahead.next();
  const Lookahead::Told b = ahead.next();
  const Lookahead::Told c = ahead.next();
  ahead.put_back(b);
  ahead.put_back(c);
  ahead.put_back(a);
  std::string all;
  while (ahead.has_next()) all += next_of(ahead);
  EXPECT_EQ(all, "/a/b/c/d");
  EXPECT_EQ(ahead.waiting(), 0U);
  // Only the keeper counts tries, and what waits for room is not tried.
  ASSERT_TRUE(ahead.tell(stream, "/e"));
  Lookahead::Told e = ahead.next();
  ahead.put_back(e);
  e = ahead.next();
  EXPECT_EQ(e.tries, 0);
  ++e.tries;
  ahead.put_back(e);
  EXPECT_EQ(ahead.next().tries, 1);
}

TEST(Lookahead, TakesNoMoreThanItsLimits) {
  Lookahead ahead;
  const auto stream = *ahead.begin();
  const std::string path(4000, 'p');
  std::size_t taken = 0;
  while (ahead.tell(stream, path + std::to_string(taken))) ++taken;
  EXPECT_GT(taken, std::size_t{1000});
  EXPECT_LE(taken * path.size(), Lookahead::kToldBytesMax);
  ASSERT_TRUE(ahead.has_next());
  ahead.end(stream);
  while (ahead.begin()) ++taken;
  EXPECT_LT(taken, Lookahead::kToldMax);
}

TEST(Lookahead, LeftByItsTellerEndsWhenItIsDone) {
  Lookahead ahead;
  const auto stream = *ahead.begin();
  ASSERT_TRUE(ahead.tell(stream, "/a"));
  ahead.leave(stream);
  const Lookahead::Told a = ahead.next();
  ahead.put_back(a);
  EXPECT_EQ(next_of(ahead), "/a");
  EXPECT_TRUE(ahead.is_live(stream));
  ahead.done(stream);
  EXPECT_TRUE(ahead.is_empty());
}

TEST(Reserve, LetsGoOfWhatIsBehindItsReaderAndOfNothingBefore) {
  Reserve reserve;
  std::map<std::uint64_t, std::uint32_t> opens;
  const Time start{};
  for (std::uint64_t key = 1; key <= 4; ++key)
    reserve.add({.key = key, .bytes = 10, .stream = 1, .place = key, .opens = 5, .made = start});
  for (std::uint64_t key = 1; key <= 4; ++key) opens[key] = 5;
  bool is_live = true;
  const auto droppable = [&](std::uint64_t wanted, Lookahead::Stream stream, Duration after) {
    return reserve.droppable(
        wanted, stream, start + after, [&](std::uint64_t key) { return opens[key]; },
        [&](Lookahead::Stream) { return is_live; });
  };
  using Keys = std::vector<std::uint64_t>;
  EXPECT_EQ(droppable(20, 1, Duration{}), Keys());
  opens[2] = 6;
  EXPECT_EQ(droppable(20, 1, Duration{}), Keys({2}));
  opens[1] = 6;
  EXPECT_EQ(droppable(20, 1, Duration{}), Keys({1, 2}));
  EXPECT_EQ(droppable(10, 1, Duration{}), Keys({1}));
  EXPECT_EQ(reserve.remove(1) + reserve.remove(2) + reserve.remove(2), 20U);
  // Its own stream waits for its reader as long as that takes; another one for a while.
  EXPECT_EQ(droppable(10, 1, Reserve::kPatience * 10), Keys());
  EXPECT_EQ(droppable(10, 2, Duration{}), Keys());
  EXPECT_EQ(droppable(10, 2, Reserve::kPatience * 2), Keys({3}));
  is_live = false;
  EXPECT_EQ(droppable(100, 1, Duration{}), Keys({3, 4}));
  is_live = true;
  // A reader that went on far beyond them does not come back.
  reserve.add({.key = 9, .bytes = 10, .stream = 1, .place = 5 + Reserve::kSlack, .opens = 0, .made = start});
  opens[9] = 1;
  EXPECT_EQ(droppable(100, 1, Duration{}), Keys({9, 3, 4}));
  reserve.clear();
  EXPECT_EQ(reserve.bytes(), 0U);
}

constexpr int kFileBytes = 1000;

std::string name_of(int number) { return "set/" + std::to_string(number); }

/// The paths of a set in an order that is not that of their names.
std::vector<std::string> make_set(const TierLab& lab, int files) {
  std::vector<std::string> paths;
  for (int i = 0; i < files; ++i)
    paths.push_back(lab.make(name_of(i * 7 % files), kFileBytes, static_cast<unsigned>(i)));
  return paths;
}

void tell(const TierLab& lab, const std::vector<std::string>& paths) {
  std::ofstream out(lab.path("order"), std::ios::binary);
  for (const std::string& path : paths) out << path << '\0';
  out.close();
  const Ran told = lab.plain("'" FRESHET_PROGRAM "' tier upcoming --null < '" + lab.path("order") + "'");
  ASSERT_EQ(told.code, 0) << told.err;
}

TEST(KnownOrder, IsTheOrderOfTheCopies) {
  const TierLab lab("threads = 1");
  const std::vector<std::string> paths = make_set(lab, 30);
  tell(lab, paths);
  ASSERT_EQ(lab.tier_command({"settle"}).code, 0);
  // A copy's inode changes last when it gets its name.
  // Of copies that were made within one tick of the clock nothing tells the order.
  std::vector<std::pair<std::pair<long, long>, std::size_t>> made;
  ASSERT_TRUE(tier::each_copy(lab.tier(), [&](const tier::Identity& identity, std::uint64_t, bool) {
    struct stat copy {};
    ASSERT_EQ(::stat(tier::copy_path(lab.tier(), identity).c_str(), &copy), 0);
    const auto place = std::ranges::find(paths, tier::source_of_copy(lab.tier(), identity));
    made.emplace_back(std::pair(copy.st_ctim.tv_sec, copy.st_ctim.tv_nsec), place - paths.begin());
  }));
  std::ranges::sort(made);
  ASSERT_EQ(made.size(), paths.size());
  for (std::size_t i = 0; i < made.size(); ++i) EXPECT_EQ(made[i].second, i);
  EXPECT_NE(made.front().first, made.back().first);
}

/// Reads files in their order; before each open the keeper has done what it can.
std::string reader_of(const TierLab& lab) {
  std::string path = lab.path("read.py");
  std::ofstream(path)
      << "import os, subprocess, sys\n"
         "plain = {name: value for name, value in os.environ.items() if name != 'LD_PRELOAD'}\n"
         "def used():\n"
         "    return sum(os.lstat(os.path.join(at, name)).st_size for at, _, names in os.walk(sys.argv[3])\n"
         "               for name in names if not name.startswith('.freshet-'))\n"
         "most, good = 0, 0\n"
         "for path in open(sys.argv[1], 'rb').read().split(b'\\0')[:-1]:\n"
         "    subprocess.run([sys.argv[2], 'tier', 'settle'], check=True, env=plain)\n"
         "    most = max(most, used())\n"
         "    with open(path, 'rb') as file: good += len(file.read()) == 1000\n"
         "print(good, most)\n";
  return path;
}

TEST(KnownOrder, IsNotWaitedForWhereASetDoesNotFit) {
  constexpr int kFiles = 24;
  constexpr int kRoom = 8;
  const TierLab lab("", 1, std::to_string(kRoom * kFileBytes) + " B");
  const std::vector<std::string> paths = make_set(lab, kFiles);
  const std::string read =
      "python3 '" + reader_of(lab) + "' '" + lab.path("order") + "' '" FRESHET_PROGRAM "' '" + lab.tier() + "'";
  std::uint64_t before = 0;
  for (int epoch = 1; epoch <= 6; ++epoch) {
    tell(lab, paths);
    const Ran ran = lab.served(read);
    ASSERT_EQ(ran.code, 0) << ran.err;
    std::istringstream said(ran.out);
    int good = 0;
    int most = 0;
    said >> good >> most;
    EXPECT_EQ(good, kFiles);
    EXPECT_LE(most, kRoom * kFileBytes);
    EXPECT_GE(most, (kRoom - 1) * kFileBytes);
    const auto total = lab.total();
    // In the first epoch too, and when the copies that stay have become those of the order's end. Without an order at
    // most kRoom of an epoch's files are hits.
    EXPECT_GE(total["hits"], epoch * kFiles * 9 / 10) << epoch;
    // What stays is not read again. The reserve's share is.
    const std::uint64_t read_bytes = total["source_read_bytes"].get<std::uint64_t>() - before;
    EXPECT_LE(read_bytes, (epoch == 1 ? kFiles : kFiles - kRoom + 5) * kFileBytes) << epoch;
    before += read_bytes;
  }
}

TEST(KnownOrder, ThatIsWrongDoesNoHarm) {
  const TierLab lab("", 1, "20000 B");
  std::vector<std::string> paths = make_set(lab, 40);
  std::vector<std::string> wrong = {lab.source("absent"),
                                    lab.source("set"),
                                    lab.source(),
                                    "/etc/passwd",
                                    "relative",
                                    "",
                                    "\n",
                                    lab.source("set/") + std::string(5000, 'n'),
                                    lab.config(),
                                    "/proc/self/fd/0"};
  const std::string big = lab.make("big", 30'000);
  wrong.push_back(big);
  // Told and never opened: as much as the tier holds, and more.
  for (int i = 0; i < 40; ++i)
    wrong.push_back(lab.make("never/" + std::to_string(i), kFileBytes, static_cast<unsigned>(i)));
  tell(lab, wrong);
  ASSERT_EQ(lab.tier_command({"settle", "--timeout", "60"}).code, 0);
  const std::string read_all = "cat " + lab.source("set") + "/* " + big + " | sha256sum";
  EXPECT_EQ(lab.served(read_all).out, lab.plain(read_all).out);
  ASSERT_EQ(lab.tier_command({"settle", "--timeout", "60"}).code, 0);
  EXPECT_EQ(lab.served(read_all).out, lab.plain(read_all).out);
  const Ran said = lab.tier_command({"stat", "--json"});
  EXPECT_LE(nlohmann::json::parse(said.out.substr(0, said.out.find('\n')))["used_bytes"], 20'000);
  EXPECT_EQ(lab.tier_command({"verify"}).code, 0);
}

TEST(KnownOrder, OutlivesKeepersThatDie) {
  constexpr int kFiles = 60;
  const TierLab lab("", 1, "20000 B");
  const std::vector<std::string> paths = make_set(lab, kFiles);
  tell(lab, paths);
  // The command kills the keeper now and then, and tells the next one what is left.
  std::ofstream(lab.path("kill.py"))
      << "import json, os, signal, subprocess, sys\n"
         "plain = {name: value for name, value in os.environ.items() if name != 'LD_PRELOAD'}\n"
         "def tier(*words, **more): return subprocess.run([sys.argv[2], 'tier', *words], env=plain, "
         "stdout=subprocess.PIPE, **more)\n"
         "paths = open(sys.argv[1], 'rb').read().split(b'\\0')[:-1]\n"
         "for at, path in enumerate(paths):\n"
         "    with open(path, 'rb') as file: sys.stdout.buffer.write(file.read())\n"
         "    if at % 12 == 7:\n"
         "        pid = json.loads(tier('stat', '--json').stdout.splitlines()[-1])['keeper_pid']\n"
         "        if pid: os.kill(pid, signal.SIGKILL)\n"
         "        tier('upcoming', '-0', input=b''.join(path + b'\\0' for path in paths[at:]), check=True)\n";
  const std::string read =
      "python3 '" + lab.path("kill.py") + "' '" + lab.path("order") + "' '" FRESHET_PROGRAM "' | sha256sum";
  EXPECT_EQ(lab.served(read).out, lab.plain("xargs -0 cat < '" + lab.path("order") + "' | sha256sum").out);
  ASSERT_EQ(lab.tier_command({"settle", "--timeout", "60"}).code, 0);
  EXPECT_EQ(lab.tier_command({"verify"}).code, 0);
  EXPECT_LE(lab.copies().size(), 20U);
  for (const auto& entry : std::filesystem::directory_iterator(lab.tier())) {
    EXPECT_FALSE(entry.path().filename().string().starts_with(".freshet-copy-")) << entry.path();
  }
}

}  // namespace
}  // namespace freshet::test
