// SPDX-License-Identifier: Apache-2.0
/// What the command line of a rank promises, option by option.

#include <gtest/gtest.h>

#include <filesystem>

#include "core/base/format.h"
#include "tests/repo/levels/support/job.h"

namespace freshet::test {
namespace {

TEST(RanksOptions, AVersionIsRestoredByItsName) {
  Job job(mixed_state());
  expect_all_exit(job.run(2, 6, {.words = {"--when-behind", "wait", "--keep", "local:10"}}), 0);
  const auto runs = job.run(2, 8, {.words = {"--restore", "net@3", "--when-behind", "wait", "--keep", "local:10"}});
  expect_all_exit(runs, 0);
  expect_all_hold_what_they_should(job, runs);
  EXPECT_EQ(runs[0].started()["restored"]["version"], 3);
  EXPECT_EQ(runs[0].started()["restored"]["from"], Json::array({"local"}));
  EXPECT_GT(runs[0].events("captured").front()["version"], 6) << "a number was given twice";
  expect_all_exit(job.run(2, 8, {.words = {"--restore", "net@99"}}), 3);
  expect_all_exit(job.run(2, 8, {.words = {"--restore", "other@3"}}), 2);
}

TEST(RanksOptions, WhatIsNotThereIsRefused) {
  Job job(mixed_state());
  expect_all_exit(job.run(1, 3, {.words = {"--rejoin", "5"}}), 2);
  expect_all_exit(job.run(1, 3, {.words = {"--die-at", "somewhere:3"}}), 2);
  expect_all_exit(job.run(1, 3, {.words = {"--die-at", "captured"}}), 2);
  expect_all_exit(job.run(1, 3, {.words = {"--keep", "local:0"}}), 2);
  expect_all_exit(job.run(1, 3, {.words = {"--keep", "disk:2"}}), 2);
  std::filesystem::remove(job.folder("state.json"));
  expect_all_exit(job.run(1, 3), 3);
}

TEST(RanksOptions, AllFoldersAreReadAndTheFirstIsWritten) {
  Job job(mixed_state());
  expect_all_exit(job.run(2, 4, {.words = {"--when-behind", "wait"}}), 0);
  expect_all_exit(job.run(1, 5), 4);
  const auto before = job.shards(1);
  const auto runs = job.run(1, 6, {.words = {"--local", job.local(1), "--when-behind", "wait"}});
  expect_all_exit(runs, 0);
  expect_all_hold_what_they_should(job, runs);
  EXPECT_EQ(runs[0].started()["restored"]["step"], 4);
  EXPECT_EQ(job.shards(1), before);
}

/// The last version did not reach the repository, since the provider died: the job ends well, and says so.
TEST(RanksOptions, ALevelThatTheLastVersionFailedIsAnExitOf1) {
  Job job(mixed_state());
  ChildProcess store(
      {FRESHET_PROGRAM, "provider", "--repo", job.folder("store"), "--listen", "tcp://127.0.0.1:*", "--json"});
  const auto at = store.line();
  ASSERT_TRUE(at);
  auto processes = job.start(1, 10, {.words = {"--external", Json::parse(*at)["address"], "--step-ms", "10"}});
  ASSERT_TRUE(processes[0]->line());
  store.end(SIGKILL);
  const RankRun run = Job::finish(*processes[0]);
  EXPECT_EQ(run.exit_code(), 1);
  EXPECT_EQ(run.events("done").size(), 1U);
  const auto failed = run.events("failed");
  ASSERT_FALSE(failed.empty());
  EXPECT_EQ(failed.back()["level"], "external");
  EXPECT_EQ(failed.back()["version"], 10);
  EXPECT_NE(failed.back()["error"], "");
}

TEST(RanksOptions, EightRanksGoOnAsFiveAndFiveAsEight) {
  Job job(mixed_state());
  std::uint64_t steps = 0;
  for (const std::uint32_t ranks : {8U, 5U, 8U}) {
    Job::Options options{.words = {"--external", job.folder("runs"), "--when-behind", "wait"}};
    const auto runs = job.run(ranks, steps + 2, options);
    expect_all_exit(runs, 0);
    expect_all_hold_what_they_should(job, runs);
    if (steps > 0) {
      EXPECT_EQ(runs[0].started()["restored"]["step"], steps);
    }
    steps += 2;
  }
}

/// A limit delays what a rank sends, so a slow machine cannot fail this: it only takes longer.
TEST(RanksOptions, TheLimitHoldsForWhatGoesToGroupAndExternal) {
  // A rank stores 2 MiB, which go by the MiB. Before the first one nothing waits.
  Job job(R"({"seed":"7","tensors":[
    {"name":"w","dtype":"f32","shape":[1048576],"role":"weight","layout":"replicated","every":1}]})");
  const auto runs = job.run(2, 2,
                            {.words = {"--when-behind", "wait", "--group", "partner", "--host", "h{rank}", "--external",
                                       job.folder("runs"), "--limit-mib-s", "4"}});
  expect_all_exit(runs, 0);
  for (const RankRun& run : runs) {
    EXPECT_EQ(run.reached("external"), 2U);
    for (const Json& line : run.events("reached")) {
      const double waits = line["level"] == "external" ? 3 : line["level"] == "group" ? 1 : 0;
      EXPECT_GE(line["ms"].get<double>(), 1000 * waits / 4) << line;
    }
  }
}

}  // namespace
}  // namespace freshet::test
