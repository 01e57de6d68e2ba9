// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>

#include "examples/live_run/tests/live_program.h"
#include "tests/support/eventually.h"

namespace freshet::live {
namespace {

namespace fs = std::filesystem;

/// Slow machines and sanitizers answer late; whether an answer comes at all is what these tests are about.
const std::vector<std::string> kSmall = {"--json",    "--scale=2MB",         "--rate=50",
                                         "--pace=60", "--schedule=every:10", "--deadline=60000"};

std::vector<std::string> small_run(std::vector<std::string> more) {
  more.insert(more.begin(), kSmall.begin(), kSmall.end());
  return more;
}

/// `unchecked_max`: answers that nobody may have looked at, because the load that had them was killed.
void expect_nothing_lost(const nlohmann::json& summary, std::int64_t unchecked_max = 0) {
  EXPECT_EQ(summary["torn_reads"], 0) << summary;
  EXPECT_EQ(summary["failed_requests"], 0) << summary;
  EXPECT_GT(summary["requests"], 0) << summary;
  EXPECT_GE(summary["checked_answers"].get<std::int64_t>() + unchecked_max, summary["requests"].get<std::int64_t>())
      << summary;
}

TEST(LiveRun, TrainsServesAndKeepsEveryVersion) {
  LiveProgram program;
  program.start(small_run({"--versions=12", "--freeze=40"}));
  ASSERT_EQ(program.wait(), 0) << program.err();
  const nlohmann::json summary = program.summary();
  ASSERT_TRUE(summary.is_object()) << program.out();
  for (const char* key :
       {"steps", "versions_published", "versions_served", "requests", "failed_requests", "torn_reads", "model_bytes",
        "bytes_published", "update_latency_ms", "notify_us", "blocked_ms", "reader_stall_us", "served_loss",
        "trained_loss", "initial_loss", "repo_versions", "repo_bytes", "full_copy_bytes", "restarts"}) {
    EXPECT_TRUE(summary.contains(key)) << key;
  }
  expect_nothing_lost(summary);
  EXPECT_EQ(summary["versions_published"], 12);
  EXPECT_EQ(summary["repo_versions"], 12);
  EXPECT_EQ(summary["restarts"], 0);
  EXPECT_GE(summary["versions_served"], 2);
  EXPECT_LE(summary["versions_served"], 12);
  EXPECT_GE(summary["steps"], 110);
  EXPECT_LT(summary["trained_loss"], summary["initial_loss"]);
  EXPECT_LT(summary["served_loss"], summary["initial_loss"]);
  EXPECT_EQ(summary["full_copy_bytes"], 12 * summary["model_bytes"].get<std::uint64_t>());
  EXPECT_LT(summary["bytes_published"], summary["full_copy_bytes"]);
  EXPECT_GT(summary["repo_bytes"], 0);
  const std::string out = program.out();
  EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 1) << "only the summary on stdout: " << out;

  nlohmann::json file;
  std::ifstream(program.report() + "/summary.json") >> file;
  EXPECT_EQ(file, summary);
  EXPECT_TRUE(fs::exists(program.report() + "/repository"));
  for (const char* plot : {"loss", "latency", "bytes"}) {
    EXPECT_TRUE(fs::exists(program.report() + "/" + plot + ".gp"));
    const bool drawn = fs::exists(program.report() + "/" + plot + ".svg");
    EXPECT_TRUE(drawn || program.err().find("no plots: gnuplot is not installed") != std::string::npos) << plot;
  }
}

TEST(LiveRun, FindsATornReadThatIsMadeOnPurpose) {
  LiveProgram program;
  program.start(small_run({"--versions=15", "--make-torn-read"}));
  EXPECT_EQ(program.wait(), 1) << program.err();
  const nlohmann::json summary = program.summary();
  ASSERT_TRUE(summary.is_object()) << program.out() << program.err();
  EXPECT_GT(summary["torn_reads"], 0);
  EXPECT_LT(summary["torn_reads"], summary["checked_answers"]);
  EXPECT_EQ(summary["failed_requests"], 0);
  EXPECT_NE(program.err().find("torn read: version "), std::string::npos) << program.err();
}

TEST(LiveRun, EveryRoleMayBeKilledAndJoinsAgain) {
  LiveProgram program;
  program.start(small_run({"--versions=1000000"}));
  std::vector<std::string> victims = {"trainer", "repository", "load", "server"};
  std::size_t kills = 0;
  for (const std::string& role : victims) {
    for (std::size_t i = 0; i < (role == "server" ? 2u : 1u); ++i, ++kills) {
      const unsigned long before = program.served();
      ASSERT_TRUE(program.wait_until([&] { return program.served() > before + 2; })) << program.err();
      const std::vector<pid_t> pids = program.roles(role);
      ASSERT_GT(pids.size(), i) << role;
      ASSERT_EQ(::kill(pids[i], SIGKILL), 0);
      ASSERT_TRUE(program.wait_until([&] {
        const std::vector<pid_t> now = program.roles(role);
        return now.size() == pids.size() && now[i] != pids[i];
      })) << program.err();
      const unsigned long after = program.served();
      ASSERT_TRUE(program.wait_until([&] { return program.served() > after + 2; })) << role << "\n" << program.err();
    }
  }
  program.signal(SIGINT);
  EXPECT_EQ(program.wait(), 130) << program.err();
  const nlohmann::json summary = program.summary();
  ASSERT_TRUE(summary.is_object()) << program.out() << program.err();
  expect_nothing_lost(summary, 50);  // Those of a second, at the rate of these tests.
  EXPECT_EQ(summary["restarts"], kills);
  EXPECT_NE(program.err().find("trainer: goes on from live@"), std::string::npos) << program.err();
}

TEST(LiveRun, CtrlCEndsEverythingAndLeavesTheReport) {
  LiveProgram program;
  program.start(small_run({"--versions=1000000"}));
  ASSERT_TRUE(program.wait_until([&] { return program.served() > 2; })) << program.err();
  std::vector<pid_t> pids;
  for (const char* role : {"trainer", "server", "repository", "load"}) {
    for (const pid_t pid : program.roles(role)) pids.push_back(pid);
  }
  ASSERT_EQ(pids.size(), 5u);
  for (const pid_t pid : pids) ::kill(pid, SIGINT);  // As a terminal does it.
  program.signal(SIGINT);
  EXPECT_EQ(program.wait(), 130) << program.err();
  for (const pid_t pid : pids) EXPECT_EQ(::kill(pid, 0), -1) << "still there: " << pid;
  ASSERT_TRUE(program.summary().is_object());
  expect_nothing_lost(program.summary());
  EXPECT_TRUE(fs::exists(program.report() + "/summary.json"));
  for (const auto& entry : fs::directory_iterator(program.folder())) {
    EXPECT_FALSE(entry.path().filename().string().starts_with("freshet-live-")) << "left behind: " << entry.path();
  }
}

TEST(LiveRun, CtrlCBeforeAnythingIsServedEndsItToo) {
  LiveProgram program;
  program.start({"--json", "--scale=200MB", "--versions=1000000"});
  ASSERT_TRUE(program.wait_until([&] { return !program.roles("load").empty(); })) << program.err();
  program.signal(SIGINT);
  EXPECT_EQ(program.wait(), 130) << program.err();
  EXPECT_TRUE(program.summary().is_object()) << program.out();
}

TEST(LiveRun, GivesUpOnARoleThatCannotStart) {
  LiveProgram program;
  const std::string text = program.folder() + "/text";
  std::ofstream(text) << std::string(20'000, 'x');
  program.start(small_run({"--versions=1000000", "--text=" + text}));
  ASSERT_TRUE(program.wait_until([&] { return program.served() > 1; })) << program.err();
  fs::remove(text);
  ASSERT_EQ(program.roles("trainer").size(), 1u);
  ::kill(program.roles("trainer")[0], SIGKILL);
  EXPECT_EQ(program.wait(), 1) << program.err();
  EXPECT_NE(program.err().find("trainer died 5 times"), std::string::npos) << program.err();
  EXPECT_TRUE(program.summary().is_object()) << program.out();
}

TEST(LiveRun, RolesDieWithTheirSupervisor) {
  LiveProgram program;
  program.start(small_run({"--versions=1000000"}));
  ASSERT_TRUE(program.wait_until([&] { return program.served() > 0; })) << program.err();
  std::vector<pid_t> pids;
  for (const char* role : {"trainer", "server", "repository", "load"}) {
    for (const pid_t pid : program.roles(role)) pids.push_back(pid);
  }
  program.signal(SIGKILL);
  EXPECT_EQ(program.wait(), -SIGKILL);
  const auto is_running = [](pid_t pid) {
    std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
    std::string text;
    std::getline(stat, text);
    return !text.empty() && text.find(") Z") == std::string::npos;
  };
  for (const pid_t pid : pids) {
    EXPECT_TRUE(came_true([&] { return !is_running(pid); })) << pid;
  }
}

TEST(LiveRun, TextThatIsNoneIsSaidPlainly) {
  LiveProgram program;
  program.start({"--text=" + program.folder() + "/gone"});
  EXPECT_EQ(program.wait(), 1);
  EXPECT_EQ(program.err(), "live_run: text " + program.folder() + "/gone: no such file\n");
}

TEST(LiveRun, AHostDirectoryThatIsOpenToOthersIsRefusedAtOnce) {
  LiveProgram program;
  const std::string open = program.folder() + "/open";
  fs::create_directories(open);
  fs::permissions(open, fs::perms::all);
  program.start({"--seconds=60"}, open);
  EXPECT_EQ(program.wait(), 1);
  EXPECT_NE(program.err().find(open), std::string::npos) << program.err();
  EXPECT_EQ(program.err().find("died"), std::string::npos) << program.err();
}

TEST(LiveRun, AReportFolderOfSomebodyElseIsLeftAlone) {
  LiveProgram program;
  fs::create_directories(program.report());
  std::ofstream(program.report() + "/thesis.txt") << "dear reader";
  program.start({"--seconds=1"});
  EXPECT_EQ(program.wait(), 1);
  EXPECT_NE(program.err().find("holds something else"), std::string::npos) << program.err();
  EXPECT_TRUE(fs::exists(program.report() + "/thesis.txt"));
}

}  // namespace
}  // namespace freshet::live
