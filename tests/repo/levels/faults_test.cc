// SPDX-License-Identifier: Apache-2.0
/// Ranks that are killed and stopped where it hurts, and jobs that get into each other's way.

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <filesystem>

#include "core/base/format.h"
#include "tests/repo/levels/support/job.h"

namespace freshet::test {
namespace {

std::uint64_t acknowledged(const RankRun& run) {
  return std::max({run.reached("local"), run.reached("group"), run.reached("external")});
}

TEST(RanksFaults, WhenAllAreKilledAtOnceNothingAcknowledgedIsLost) {
  Job job(mixed_state());
  std::uint64_t steps = 0;
  for (int life = 0; life < 3; ++life) {
    auto processes = job.start(3, 100'000, {.words = {"--step-ms", "2"}});
    std::uint64_t newest = 0;
    while (newest < steps + 5) {
      const auto line = processes[0]->line();
      ASSERT_TRUE(line);
      const Json said = Json::parse(*line);
      if (said["event"] == "reached" && said["level"] == "local") newest = said["version"];
    }
    for (const auto& process : processes) ::kill(process->pid(), SIGKILL);
    for (const auto& process : processes) newest = std::max(newest, acknowledged(Job::finish(*process)));
    const auto again = job.run(3, 1);  // Its steps are behind it: it restores, and ends.
    expect_all_exit(again, 0);
    expect_all_hold_what_they_should(job, again);
    EXPECT_GE(again[0].started()["restored"]["version"], newest);
    steps = newest;
  }
}

TEST(RanksFaults, ARestartThatIsKilledIsBegunAgain) {
  Job job(mixed_state());
  expect_all_exit(job.run(3, 6, {.words = {"--when-behind", "wait"}}), 0);
  for (const std::uint32_t victim : {0U, 1U}) {
    Job::Options options;
    options.of[victim] = {"--die-at", "restoring:6"};
    const auto died = job.run(3, 8, options);
    EXPECT_TRUE(WIFSIGNALED(died[victim].status));
    EXPECT_EQ(died[2].exit_code(), 5);
  }
  const auto again = job.run(3, 6);
  expect_all_exit(again, 0);
  expect_all_hold_what_they_should(job, again);
  EXPECT_EQ(again[0].started()["restored"]["step"], 6);
}

TEST(RanksFaults, ARebuildThatIsKilledIsBegunAgain) {
  Job job(mixed_state());
  Job::Options options{.words = {"--group", "xor", "--host", "h{rank}", "--when-behind", "wait"}};
  expect_all_exit(job.run(4, 7, options), 0);
  std::filesystem::remove_all(job.local(2));
  options.of[2] = {"--die-at", "rebuilding:7"};
  const auto died = job.run(4, 9, options);
  EXPECT_TRUE(WIFSIGNALED(died[2].status));
  EXPECT_EQ(died[0].exit_code(), 5);
  options.of.clear();
  const auto again = job.run(4, 7, options);
  expect_all_exit(again, 0);
  expect_all_hold_what_they_should(job, again);
  EXPECT_EQ(again[0].started()["restored"]["step"], 7);
}

/// The others went on without it, from the same folders: it must not write there any more, nor say that something is
/// safe.
TEST(RanksFaults, ARankThatWasStoppedAcknowledgesNothingWhenItGoesOn) {
  Job job(mixed_state());
  auto processes = job.start(3, 100'000, {.words = {"--step-ms", "5", "--lost-after", "2"}});
  while (const auto line = processes[1]->line()) {
    const Json said = Json::parse(*line);
    if (said["event"] == "reached" && said["level"] == "local") break;  // Memory alone would be gone.
  }
  processes[1]->stop();
  std::uint64_t newest = 0;
  for (const std::size_t rank : {0U, 2U}) {
    const RankRun run = Job::finish(*processes[rank]);
    EXPECT_EQ(run.exit_code(), 5);
    newest = std::max(newest, acknowledged(run));
  }
  processes[1]->go_on();
  const RankRun late = Job::finish(*processes[1]);
  EXPECT_EQ(late.exit_code(), 5);
  newest = std::max(newest, acknowledged(late));
  const auto again = job.run(3, 1);
  expect_all_exit(again, 0);
  expect_all_hold_what_they_should(job, again);
  EXPECT_GE(again[0].started()["restored"]["version"], newest);
}

TEST(RanksFaults, ASecondJobAtOneMeetingPlaceLeavesTheFirstAlone) {
  Job first(mixed_state());
  Job second(mixed_state());
  const std::string meet = meeting_address();
  auto running = first.start(2, 30, {.words = {"--step-ms", "20"}, .of = {}, .meet = meet});
  ASSERT_TRUE(running[0]->line());
  ASSERT_TRUE(running[1]->line());
  for (const RankRun& run : second.run(2, 3, {.words = {"--patience", "0.5"}, .of = {}, .meet = meet})) {
    EXPECT_NE(run.exit_code(), 0);
    EXPECT_TRUE(run.events("captured").empty());
  }
  for (const auto& process : running) EXPECT_EQ(Job::finish(*process).exit_code(), 0);
}

/// Two jobs that bring versions of one name to one repository: what one of them has there stays whole.
TEST(RanksFaults, TwoJobsWithOneNameAndOneRepositoryDamageNothing) {
  Job first(mixed_state());
  Job second(mixed_state());
  const std::string place = first.folder("runs");
  const Job::Options options{.words = {"--external", place, "--step-ms", "5", "--when-behind", "wait"}};
  auto one = first.start(2, 12, options);
  auto other = second.start(2, 12, options);
  std::uint64_t newest = 0;
  for (auto* job : {&one, &other}) {
    for (const auto& process : *job) {
      const RankRun run = Job::finish(*process);
      newest = std::max(newest, run.reached("external"));
    }
  }
  ASSERT_GT(newest, 0U) << "one of them came through";
  ChildProcess verify({FRESHET_PROGRAM, "repo", "verify", "--repo", place, "--json"});
  EXPECT_EQ(Job::finish(verify).exit_code(), 0);
  const std::string out = first.folder("out.safetensors");
  ChildProcess get({FRESHET_PROGRAM, "checkpoint", "get", format("net@{}", newest), "-o", out, "--local",
                    first.folder("none"), "--external", place, "--json"});
  const RankRun got = Job::finish(get);
  ASSERT_EQ(got.exit_code(), 0);
  EXPECT_EQ(first.difference_of_file(out, got.lines.at(0)["step"], 2), "");
}

}  // namespace
}  // namespace freshet::test
