// SPDX-License-Identifier: Apache-2.0
// The commands as scripts rely on them: exit codes, lines, JSON.

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/repo/tier/support/lab.h"

namespace freshet::test {
namespace {

std::string sources_of(int count) {
  std::string text = "source = [";
  for (int i = 0; i < count; ++i) text += "\"/\", ";
  return text + "]\n";
}

std::string tiers_of(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += "[[tier]]\npath = \"@/t" + std::to_string(i) + "\"\nquota = 1\n";
  return text;
}

TEST(TierCommands, EachFaultOfAConfigIsOneLineAndStartsNothing) {
  const char* good = "source = [\"@/source\"]\n";
  const std::string tier = "[[tier]]\npath = \"@/tier1\"\nquota = 10\n";
  const std::pair<std::string, const char*> configs[] = {
      {good + ("sauce = 1\n" + tier), "unknown key \"sauce\""},
      {"source = \"@/source\"\n" + tier, "source must be a list"},
      {"source = []\n" + tier, "source must be a list"},
      {"source = [3]\n" + tier, "source must be a list"},
      {tier, "source must be a list"},
      {"source = [\"@/absent\"]\n" + tier, "No such file"},
      {"source = [\"@/tiers.toml\"]\n" + tier, "is no folder"},
      {"source = [\"source\"]\n" + tier, "absolute"},
      {"source = [\"@/source\", \"@/./source/\"]\n" + tier, "twice"},
      {good, "[[tier]]"},
      {std::string(good) + "tier = 3\n", "[[tier]]"},
      {std::string(good) + "[[tier]]\nquota = 10\n", "needs its path"},
      {std::string(good) + "[[tier]]\npath = \"@/tier1\"\n", "needs a quota"},
      {std::string(good) + "[[tier]]\npath = \"@/tier1\"\nquota = \"ten\"\n", "is no size"},
      {std::string(good) + "[[tier]]\npath = \"@/tier1\"\nquota = \"1 GiBs\"\n", "is no size"},
      {std::string(good) + "[[tier]]\npath = \"@/tier1\"\nquota = 0\n", "above 0"},
      {std::string(good) + "[[tier]]\npath = \"@/tier1\"\nquota = true\n", "quota of tier"},
      {std::string(good) + "[[tier]]\npath = \"@/tier1\"\nquota = 1\nsize = 1\n", "unknown key \"size\""},
      {std::string(good) + "[[tier]]\npath = \"@/source/tier\"\nquota = 1\n", "lies inside source"},
      {std::string(good) + "[[tier]]\npath = \"@/source\"\nquota = 1\n", "both a source and a tier"},
      {std::string(good) + "[[tier]]\npath = \"@\"\nquota = 1\n", "lies inside tier"},
      {std::string(good) + tier + tier, "twice"},
      {std::string(good) + "first_open = \"later\"\n" + tier, "first_open"},
      {std::string(good) + "first_open = true\n" + tier, "first_open must be a string"},
      {std::string(good) + "wait_s = 0\n" + tier, "wait_s"},
      {std::string(good) + "validate = \"often\"\n" + tier, "validate"},
      {std::string(good) + "evict = \"all\"\n" + tier, "evict"},
      {std::string(good) + "wait_s = \"1\"\n" + tier, "wait_s"},
      {std::string(good) + "validate = 1\n" + tier, "validate must be a string"},
      {std::string(good) + "evict = [\"never\"]\n" + tier, "evict must be a string"},
      {std::string(good) + tier + "[[tier]]\npath = \"@/tier1/inner\"\nquota = 1\n", "lie in each other"},
      {sources_of(17) + tier, "16 sources"},
      {good + tiers_of(9), "8 tiers"},
      {std::string(good) + "threads = 0\n" + tier, "threads"},
      {std::string(good) + "threads = 1.5\n" + tier, "threads"},
      {std::string(good) + "threads = \n" + tier, "line 2"},
      {std::string("\x7f"
                   "ELF\x01\0\0\xff",
                   8),
       ""},
      {std::string(70'000, '#'), "more than"},
  };
  const TierLab lab;
  for (auto [text, why] : configs) {
    const std::string folder = lab.path("");
    for (std::size_t at = text.find('@'); at != std::string::npos; at = text.find('@')) {
      text.replace(at, 1, folder.substr(0, folder.size() - 1));
    }
    std::ofstream(lab.config(), std::ios::binary) << text;
    const Ran ran = lab.tier_command({"run", "--", "touch", lab.path("started")});
    EXPECT_EQ(ran.code, 2) << text;
    EXPECT_TRUE(ran.err.starts_with("freshet tier: ") && ran.err.find(why) != std::string::npos) << text << "\n"
                                                                                                 << ran.err;
    EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 1) << ran.err;
    EXPECT_FALSE(std::filesystem::exists(lab.path("started")) || std::filesystem::exists(lab.tier())) << text;
  }
  for (const char* command : {"stat", "settle", "prefetch", "verify", "drop", "stop", "keep"}) {
    EXPECT_EQ(lab.tier_command({command, "--config", lab.path("absent")}).code, 2) << command;
  }
  // A pipe is no config, and is not waited for.
  std::filesystem::remove(lab.config());
  ASSERT_EQ(::mkfifo(lab.config().c_str(), 0600), 0);
  const Ran pipe = lab.tier_command({"run", "--", "true"});
  EXPECT_EQ(pipe.code, 2);
  EXPECT_NE(pipe.err.find("no regular file"), std::string::npos) << pipe.err;
}

TEST(TierCommands, RunEndsAsItsCommandDoes) {
  const TierLab lab;
  EXPECT_EQ(lab.served("exit 7").code, 7);
  EXPECT_EQ(lab.served("kill -TERM $$").code, 128 + 15);
  EXPECT_EQ(lab.served("kill -KILL $$").code, 128 + 9);
  EXPECT_EQ(lab.tier_command({"run", "--", "/nothing/here"}).code, 127);
  EXPECT_EQ(lab.tier_command({"run", "--", "no-such-program-anywhere"}).code, 127);
  EXPECT_EQ(lab.tier_command({"run"}).code, 2);
  EXPECT_EQ(lab.tier_command({"run", "--"}).code, 2);
  EXPECT_EQ(lab.tier_command({"run", "--nonsense", "--", "true"}).code, 2);
  EXPECT_EQ(lab.tier_command({"run", "true"}).code, 0);
  EXPECT_EQ(lab.tier_command({"upcoming"}).code, 0);
  EXPECT_EQ(lab.tier_command({"upcoming", "path"}).code, 2);
  const Ran words =
      lab.tier_command({"run", "--", "/usr/bin/printf", "%s\n", "[\"a\", b]", "", "--json", "--", "[", "x,y", "-h"});
  EXPECT_EQ(words.out, "[\"a\", b]\n\n--json\n--\n[\nx,y\n-h\n") << words.err;
  const Ran both = lab.served("echo out; echo err >&2");
  EXPECT_EQ(both.out, "out\n");
  EXPECT_EQ(both.err, "err\n");
}

TEST(TierCommands, RunHandsTermOnAndLeavesInterruptsToItsCommand) {
  const TierLab lab;
  const Ran term = lab.served("trap 'echo told; exit 3' TERM; kill -TERM $PPID; while :; do :; done");
  EXPECT_EQ(term.out, "told\n");
  EXPECT_EQ(term.code, 3);
  const Ran interrupt = lab.served("kill -INT $PPID; echo goes on");
  EXPECT_EQ(interrupt.out, "goes on\n");
  EXPECT_EQ(interrupt.code, 0);
}

/// As jobs in the background are started, and by nohup.
TEST(TierCommands, RunLeavesSignalsIgnoredThatItsCallerIgnores) {
  const TierLab lab;
  // Without the C library's own signals, which its posix_spawn() ignores.
  const std::string tell = "exec sed -n \"s/^SigIgn.*\\(.......\\)$/\\1/p\" /proc/self/status";
  for (const std::string caller : {"", "trap '' INT; ", "trap '' TERM; ", "trap '' PIPE; ", "trap '' HUP INT TERM; "}) {
    for (const std::string via : {"preload", "seccomp"}) {
      const std::string run = "exec '" FRESHET_PROGRAM "' tier run --via " + via + " -- /bin/sh -c '" + tell + "'";
      const std::string expected = lab.plain(caller + tell).out;
      ASSERT_EQ(expected.size(), 8U) << expected;
      EXPECT_EQ(lab.plain(caller + run).out, expected) << caller << via;
    }
  }
}

TEST(TierCommands, CountsOpensByEpoch) {
  const TierLab lab;
  for (int i = 0; i < 10; ++i) (void)lab.make("f" + std::to_string(i), 1000 + static_cast<std::size_t>(i));
  const std::string read_all = "cat " + lab.source() + "/* | wc -c";
  EXPECT_EQ(lab.served(read_all).out, "10045\n");
  ASSERT_EQ(lab.tier_command({"settle", "--timeout", "100"}).code, 0);
  EXPECT_EQ(lab.served(read_all).out, "10045\n");
  EXPECT_EQ(lab.served(read_all).out, "10045\n");
  const Ran said = lab.tier_command({"stat"});
  EXPECT_NE(said.out.find("\nepoch 2: 10 opens, 10 from a tier"), std::string::npos) << said.out;
  // What lies beside the source is nobody's business.
  (void)lab.served("cat " + lab.config());
  const auto total = lab.total();
  EXPECT_EQ(total["opens"], 30);
  EXPECT_EQ(total["hits"], 20);
  EXPECT_EQ(total["misses"], 10);
  EXPECT_EQ(total["hit_bytes"], 2 * 10'045);
  EXPECT_EQ(total["miss_bytes"], 10'045);
  EXPECT_EQ(total["copied_files"], 10);
  EXPECT_EQ(total["copied_bytes"], 10'045);
  EXPECT_EQ(total["source_read_bytes"], 10'045);
  EXPECT_EQ(total["queued_files"], 0);
  ASSERT_EQ(total["epochs"].size(), 3U);
  for (int epoch = 1; epoch <= 3; ++epoch) {
    const auto& row = total["epochs"][static_cast<std::size_t>(epoch - 1)];
    EXPECT_EQ(row["epoch"], epoch);
    EXPECT_EQ(row["opens"], 10);
    EXPECT_EQ(row["hits"], epoch == 1 ? 0 : 10);
    EXPECT_EQ(row["miss_bytes"], epoch == 1 ? 10'045 : 0);
  }
  // A run's report counts its own epochs.
  ASSERT_EQ(lab.tier_command({"run", "--report", lab.path("r.json"), "--", "sh", "-c", read_all}).code, 0);
  std::ifstream report(lab.path("r.json"));
  const auto of_run = nlohmann::json::parse(report)["epochs"];
  ASSERT_EQ(of_run.size(), 1U);
  EXPECT_EQ(of_run[0]["epoch"], 1);
  EXPECT_EQ(of_run[0]["hits"], 10);
}

TEST(TierCommands, TiersFillInOrderUpToTheirQuotas) {
  const TierLab lab("", 2, "2500 B");
  for (int i = 0; i < 6; ++i) (void)lab.make("f" + std::to_string(i), 1000, static_cast<unsigned>(i));
  lab.fill();
  const Ran said = lab.tier_command({"stat", "--json"});
  std::istringstream lines(said.out);
  for (int tier = 1; tier <= 2; ++tier) {
    std::string line;
    std::getline(lines, line);
    const auto row = nlohmann::json::parse(line);
    EXPECT_EQ(row["tier"], tier);
    EXPECT_EQ(row["files"], 2);
    EXPECT_EQ(row["used_bytes"], 2000);
    EXPECT_EQ(row["quota_bytes"], 2500);
    EXPECT_EQ(row["state"], "ok");
  }
  const std::string read_all = "cat " + lab.source() + "/* | sha256sum";
  EXPECT_EQ(lab.served(read_all).out, lab.plain(read_all).out);
  EXPECT_EQ(lab.total()["hits"], 4);
}

/// More files than wait at a time, in any order.
TEST(TierCommands, PrefetchPassesOverFilesThatAreTooLarge) {
  const TierLab lab("", 1, "1 MB");
  constexpr int kSmall = 1500;
  for (int i = 0; i < kSmall; ++i) {
    (void)lab.make("small" + std::to_string(i), 100, static_cast<unsigned>(i));
    if (i % 40 == 0) std::filesystem::resize_file(lab.make("large" + std::to_string(i), 1), 2'000'000);
  }
  lab.fill();
  EXPECT_EQ(lab.copies().size(), static_cast<std::size_t>(kSmall));
}

TEST(TierCommands, NamesMakeNoLinesOfTheirOwn) {
  const TierLab lab;
  (void)lab.make("a\n9 copies checked\r\x1b[2J\xc2\x9b", 5000);
  lab.fill();
  ASSERT_EQ(lab.copies().size(), 1U);
  const std::string copy = lab.copies()[0];
  std::filesystem::permissions(copy, std::filesystem::perms::owner_all);
  std::ofstream(copy) << std::string(5000, 'x');
  const Ran bad = lab.tier_command({"verify"});
  EXPECT_EQ(bad.code, 4);
  EXPECT_EQ(bad.out, "1 copies checked (5.0 kB), 1 bad and dropped\n" + lab.source("a?9 copies checked??[2J?") + "\n");
  // The keeper's reason may name a path too.
  const std::string tier = lab.path("tier\n2: ok");
  std::ofstream(lab.config()) << "source = [\"" << lab.source() << "\"]\n[[tier]]\npath = \""
                              << lab.path("tier\\n2: ok") << "\"\nquota = \"1 MiB\"\n";
  std::ofstream(tier) << "no folder";
  const Ran said = lab.tier_command({"stat"});
  EXPECT_EQ(std::count(said.out.begin(), said.out.end(), '\n'), 2) << said.out;
  EXPECT_NE(said.out.find("tier?2: ok: Not a directory"), std::string::npos) << said.out;
}

TEST(TierCommands, VerifyFindsWhatChangedAndDropRemoves) {
  const TierLab lab;
  const std::string file = lab.make("folder/one", 5000);
  (void)lab.make("folder/two", 5000, 2);
  (void)lab.make("three", 5000, 3);
  lab.fill();
  EXPECT_EQ(lab.tier_command({"verify"}).code, 0);
  for (const std::string& copy : lab.copies()) {
    const auto before = std::filesystem::last_write_time(copy);
    std::filesystem::permissions(copy, std::filesystem::perms::owner_all);
    std::fstream(copy, std::ios::in | std::ios::out).put('x').put('x').put('x').put('x');
    std::filesystem::permissions(copy, std::filesystem::perms::owner_read);
    std::filesystem::last_write_time(copy, before);
    break;
  }
  const Ran bad = lab.tier_command({"verify", "--json"});
  EXPECT_EQ(bad.code, 4);
  const auto report = nlohmann::json::parse(bad.out);
  EXPECT_EQ(report["checked_files"], 3);
  EXPECT_EQ(report["checked_bytes"], 15'000);
  ASSERT_EQ(report["corrupt"].size(), 1U);
  EXPECT_TRUE(report["corrupt"][0].get<std::string>().starts_with(lab.source()));
  EXPECT_EQ(lab.tier_command({"verify"}).code, 0);
  EXPECT_EQ(lab.copies().size(), 2U);
  EXPECT_EQ(lab.total()["corrupt"], 1);
  lab.fill();
  EXPECT_EQ(lab.copies().size(), 3U);
  EXPECT_EQ(lab.tier_command({"drop", file}).code, 0);
  EXPECT_EQ(lab.copies().size(), 2U);
  EXPECT_EQ(lab.tier_command({"drop", lab.source("folder")}).code, 0);
  EXPECT_EQ(lab.copies().size(), 1U);
  EXPECT_EQ(lab.tier_command({"drop"}).code, 0);
  EXPECT_EQ(lab.copies().size(), 0U);
}

TEST(TierCommands, FirstOpenWaitsForTheCopy) {
  const TierLab lab("first_open = \"wait\"");
  const std::string file = lab.make("data", 300'000);
  EXPECT_EQ(lab.served("sha256sum " + file).out, lab.plain("sha256sum " + file).out);
  EXPECT_EQ(lab.total()["hits"], 1);
  EXPECT_EQ(lab.total()["misses"], 0);
  EXPECT_EQ(lab.total()["source_read_bytes"], 300'000);
}

TEST(TierCommands, FirstOpenWaitsForNothingThatCannotCome) {
  const TierLab lab("first_open = \"wait\"", 1, "1 KB");
  const std::string file = lab.make("data", 300'000);
  EXPECT_EQ(lab.served("sha256sum " + file).out, lab.plain("sha256sum " + file).out);
  EXPECT_EQ(lab.total()["misses"], 1);
}

TEST(TierCommands, SettleShowsItsProgressOnATerminal) {
  const TierLab lab;
  (void)lab.make("data", 1000);
  ASSERT_EQ(lab.tier_command({"prefetch"}).code, 0);
  // A keeper that is stopped settles nothing until it goes on, which it does once something was shown.
  std::ofstream(lab.path("watch.py"))
      << "import json, os, pty, signal, subprocess, sys\n"
         "keeper = subprocess.Popen([sys.argv[1], 'tier', 'keep'], stderr=subprocess.PIPE, text=True)\n"
         "assert 'keeping' in keeper.stderr.readline()\n"
         "os.kill(keeper.pid, signal.SIGSTOP)\n"
         "os.waitpid(keeper.pid, os.WUNTRACED)\n"
         "child, terminal = pty.fork()\n"
         "if child == 0: os.execv(sys.argv[1], [sys.argv[1], 'tier', 'settle'])\n"
         "shown = b''\n"
         "while b'settle ' not in shown: shown += os.read(terminal, 100)\n"
         "os.kill(keeper.pid, signal.SIGCONT)\n"
         "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
         "keeper.terminate()\n"
         "keeper.wait()\n";
  ASSERT_EQ(lab.tier_command({"settle"}).code, 0);
  ASSERT_EQ(lab.tier_command({"stop"}).code, 0);
  const Ran ran = lab.run({"python3", lab.path("watch.py"), FRESHET_PROGRAM});
  EXPECT_EQ(ran.out, "0\n") << ran.err;
}

TEST(TierCommands, DoctorSaysWhatTiersNeed) {
  const TierLab lab("", 1, "1 MB");
  const auto found = [&](const std::string& check) {
    const Ran said = lab.run({FRESHET_PROGRAM, "doctor", "--json"});
    std::istringstream lines(said.out);
    for (std::string line; std::getline(lines, line);) {
      const auto row = nlohmann::json::parse(line, nullptr, false);
      if (row.is_object() && row["check"] == check) return row;
    }
    ADD_FAILURE() << said.out;
    return nlohmann::json();
  };
  EXPECT_EQ(found("tier_reader")["state"], "ok");
  EXPECT_EQ(found("tiers")["state"], "ok");
  for (const char* name : {"--via seccomp", "kcmp", "FUSE"})
    EXPECT_NE(found("tier_kernel")["found"].get<std::string>().find(name), std::string::npos) << name;
  EXPECT_FALSE(std::filesystem::exists(lab.tier()));
  std::ofstream(lab.config(), std::ios::app) << "[[tier]]\npath = \"" << lab.tier(2) << "\"\nquota = \"1000 TB\"\n";
  EXPECT_EQ(found("tiers")["state"], "limited");
  std::ofstream(lab.config()) << "nonsense";
  EXPECT_EQ(found("tiers")["state"], "missing");
}

}  // namespace
}  // namespace freshet::test
