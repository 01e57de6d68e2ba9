// SPDX-License-Identifier: Apache-2.0
/// The program that people try first, as real processes: what it prints, what a restart holds, byte by byte.

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>

#include "core/base/format.h"
#include "tests/repo/levels/support/job.h"
#include "tests/support/this_build.h"

namespace freshet::test {
namespace {

using Runs = std::vector<RankRun>;

TEST(Ranks, OneAloneCapturesReachesAndGoesOn) {
  Job job(mixed_state());
  const Runs first = job.run(1, 6, {.words = {"--when-behind", "wait"}});
  expect_all_exit(first, 0);
  expect_all_hold_what_they_should(job, first);
  EXPECT_TRUE(first[0].started()["restored"].is_null());
  ASSERT_EQ(first[0].events("captured").size(), 6U);
  std::uint64_t version = 0;
  for (const Json& line : first[0].events("captured")) EXPECT_EQ(line["version"], ++version);
  EXPECT_EQ(first[0].reached("local"), 6U);
  const Runs again = job.run(1, 8);
  expect_all_exit(again, 0);
  expect_all_hold_what_they_should(job, again);
  EXPECT_EQ(again[0].started()["restored"]["step"], 6);
  EXPECT_EQ(again[0].started()["restored"]["version"], 6);
  EXPECT_EQ(again[0].events("captured").front()["version"], 7) << "after an orderly end no number is left out";
}

TEST(Ranks, AnyNumberGoesOnFromAnyOther) {
  Job job(mixed_state());
  std::uint64_t steps = 0;
  std::uint64_t newest = 0;
  std::uint32_t before = 0;
  for (const std::uint32_t ranks : {3U, 1U, 4U, 2U, 2U}) {
    steps += 6;
    // The folders of ranks that are no more lie where the others can read them.
    Job::Options options{.words = {"--external", job.folder("runs"), "--when-behind", "wait"}};
    const Runs runs = job.run(ranks, steps, options);
    expect_all_exit(runs, 0);
    expect_all_hold_what_they_should(job, runs);
    if (newest == 0) {
      newest = runs[0].reached("external");
      before = ranks;
      continue;
    }
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      const Json restored = runs[rank].started()["restored"];
      EXPECT_EQ(restored["version"], newest);
      const auto fresh = restored["fresh"].get<std::vector<std::string>>();
      if (rank >= before) {
        EXPECT_EQ(fresh, (std::vector<std::string>{format("rng.r{}", rank)}));
      } else {
        EXPECT_TRUE(fresh.empty());
      }
      std::vector<std::string> left;
      for (std::uint32_t gone = ranks; gone < before; ++gone) left.push_back(format("rng.r{}", gone));
      EXPECT_EQ(restored["left"].get<std::vector<std::string>>(), left);
      EXPECT_GT(runs[rank].events("captured").front()["version"], newest);
    }
    newest = runs[0].reached("external");
    before = ranks;
  }
}

TEST(Ranks, WhatDidNotChangeIsStoredOnce) {
  Job job(mixed_state());
  const Runs runs = job.run(2, 4, {.words = {"--when-behind", "wait"}});
  expect_all_exit(runs, 0);
  const auto captured = runs[1].events("captured");
  ASSERT_EQ(captured.size(), 4U);
  // Steps 1 and 3 write w1, opt, rng and the scalar alone.
  EXPECT_GT(captured[0]["bytes"], 800'000);
  EXPECT_LT(captured[2]["bytes"], 20'000);
  const auto files = job.shards(1);
  ASSERT_FALSE(files.empty());
  EXPECT_LT(std::filesystem::file_size(files.back()), 200'000U);
  // Also after a restart.
  const Runs again = job.run(2, 5, {.words = {"--when-behind", "wait"}});
  expect_all_exit(again, 0);
  EXPECT_LT(again[1].events("captured")[0]["bytes"], 20'000);
  EXPECT_LT(std::filesystem::file_size(job.shards(1).back()), 200'000U);
  // What older versions had, and nobody needs, is gone: two versions, and what they share, are little more than one.
  std::uintmax_t blocks = 0;
  for (const auto& entry : std::filesystem::directory_iterator(job.local(1) + "/net")) {
    struct stat status {};
    ASSERT_EQ(::stat(entry.path().c_str(), &status), 0);
    blocks += static_cast<std::uintmax_t>(status.st_blocks) * 512;
  }
  EXPECT_LT(blocks, 1'200'000U);
}

TEST(Ranks, ADamagedShardIsPassedOverForAnOlderVersion) {
  Job job(mixed_state());
  const Runs runs = job.run(3, 4, {.words = {"--when-behind", "wait"}});
  expect_all_exit(runs, 0);
  const std::uint64_t newest = runs[0].reached("local");
  std::fstream file(job.shards(1).back(), std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-100, std::ios::end);
  file.put('!');
  file.close();
  const Runs again = job.run(3, 6);
  expect_all_exit(again, 0);
  expect_all_hold_what_they_should(job, again);
  EXPECT_LT(again[0].started()["restored"]["version"], newest);
}

TEST(Ranks, NothingIsMadeUpWhenWhatWasAcknowledgedIsGone) {
  Job job(mixed_state());
  expect_all_exit(job.run(3, 4), 0);
  std::filesystem::remove_all(job.local(2));
  expect_all_exit(job.run(3, 8), 4);
  const Runs anew = job.run(3, 8, {.words = {"--restore", "none"}});
  expect_all_exit(anew, 0);
  EXPECT_TRUE(anew[0].started()["restored"].is_null());
}

TEST(Ranks, AStoppedPeerIsNamedAndTheOthersEnd) {
  Job job(mixed_state());
  auto processes = job.start(3, 100'000, {.words = {"--step-ms", "20", "--lost-after", "2"}});
  ASSERT_TRUE(processes[1]->line());
  processes[1]->stop();
  for (const std::size_t rank : {0U, 2U}) {
    const RankRun run = Job::finish(*processes[rank]);
    EXPECT_EQ(run.exit_code(), 5);
    const auto lost = run.events("lost");
    ASSERT_EQ(lost.size(), 1U);
    EXPECT_EQ(lost[0]["peers"], Json::array({1}));
  }
  processes[1]->end(SIGKILL);
  const Runs again = job.run(3, 3);
  expect_all_hold_what_they_should(job, again);
}

TEST(Ranks, OneHostOfAGroupMayGo) {
  Job job(mixed_state());
  const Job::Options partners{.words = {"--group", "partner", "--host", "h{rank}", "--when-behind", "wait"}};
  Runs runs = job.run(4, 7, partners);
  expect_all_exit(runs, 0);
  const std::uint64_t newest = runs[0].reached("group");
  EXPECT_EQ(newest, 7U);
  std::filesystem::remove_all(job.local(2));
  runs = job.run(4, 9, partners);
  expect_all_exit(runs, 0);
  expect_all_hold_what_they_should(job, runs);
  EXPECT_EQ(runs[2].started()["restored"]["version"], newest);
  EXPECT_GT(runs[2].started()["restored"]["rebuilt_bytes"], 0);
  // What was rebuilt is protected again: another host may go at once, and the job may shrink.
  std::filesystem::remove_all(job.local(1));
  runs = job.run(4, 9, partners);
  expect_all_hold_what_they_should(job, runs);
  EXPECT_EQ(runs[0].started()["restored"]["step"], 9);
  // Two neighbours at once are too many: their shards and the copies of one of them are gone.
  std::filesystem::remove_all(job.local(2));
  std::filesystem::remove_all(job.local(3));
  expect_all_exit(job.run(4, 12, partners), 4);
}

/// As many hosts go as the group is made for, data and parity; the job goes on, and is protected again.
TEST(Ranks, LostHostsComeBackFromParity) {
  // With a sanitizer, whose ranks are slow, the harder scheme alone.
  const std::vector<std::string> schemes =
      under_sanitizer() ? std::vector<std::string>{"rs:2"} : std::vector<std::string>{"xor", "rs:2"};
  for (const std::string& scheme : schemes) {
    SCOPED_TRACE(scheme);
    Job job(mixed_state());
    const Job::Options parity{.words = {"--group", scheme, "--host", "h{rank}", "--when-behind", "wait"}};
    Runs runs = job.run(4, 7, parity);
    expect_all_exit(runs, 0);
    EXPECT_EQ(runs[0].reached("group"), 7U);
    std::uint64_t steps = 7;
    for (const std::vector<std::uint32_t>& lost : {std::vector<std::uint32_t>{2, 3}, {0, 1}}) {
      const std::size_t count = scheme == "xor" ? 1 : 2;
      for (std::size_t i = 0; i < count; ++i) std::filesystem::remove_all(job.local(lost[i]));
      runs = job.run(4, steps + 2, parity);
      expect_all_exit(runs, 0);
      expect_all_hold_what_they_should(job, runs);
      EXPECT_EQ(runs[0].started()["restored"]["step"], steps);
      EXPECT_GT(runs[lost[0]].started()["restored"]["rebuilt_bytes"], 0);
      steps += 2;
    }
    // With fewer ranks, from parity, too.
    std::filesystem::remove_all(job.local(3));
    runs = job.run(3, steps + 2, {.words = {"--when-behind", "wait"}});
    expect_all_exit(runs, 0);
    expect_all_hold_what_they_should(job, runs);
    EXPECT_EQ(runs[0].started()["restored"]["step"], steps);
  }
}

void flip_a_byte(const std::string& path, std::streamoff from_end) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-from_end, std::ios::end);
  file.put('!');
}

/// The rank whose shard is damaged has parity, too: its shard is rebuilt beside the damaged one, and that is what is
/// read, in this restart and in later ones.
TEST(Ranks, ADamagedShardComesBackFromParity) {
  for (const std::uint64_t newest : {5U, 4U}) {  // Step 5 inherits what step 4 wrote, step 4 is whole but for `frozen`.
    for (const std::streamoff from_end : {100, 0}) {                        // In the payload; in the head.
      if (under_sanitizer() && (newest == 5) == (from_end == 0)) continue;  // One of each.
      SCOPED_TRACE(format("step {}, {} from the end", newest, from_end));
      Job job(mixed_state());
      const Job::Options parity{.words = {"--group", "xor", "--host", "h{rank}", "--when-behind", "wait"}};
      expect_all_exit(job.run(3, newest, parity), 0);
      const std::string path = job.shards(1).back();
      flip_a_byte(path, from_end != 0 ? from_end : static_cast<std::streamoff>(std::filesystem::file_size(path)) - 200);
      for (int life = 0; life < 2; ++life) {
        const Runs again = job.run(3, newest, parity);
        expect_all_exit(again, 0);
        expect_all_hold_what_they_should(job, again);
        EXPECT_EQ(again[0].started()["restored"]["version"], newest);
      }
    }
  }
}

/// What reached `group` stays until something newer did, also over restarts from versions that reached `local` alone.
TEST(Ranks, WhatTheGroupHasStaysUntilItHasSomethingNewer) {
  for (const std::string scheme : {"xor", "partner"}) {
    SCOPED_TRACE(scheme);
    Job job(mixed_state());
    Job::Options group{.words = {"--group", scheme, "--host", "h{rank}", "--when-behind", "wait", "--step-ms", "5"}};
    expect_all_exit(job.run(3, 3, group), 0);
    for (const int step : {4, 5, 6}) {
      group.of[1] = {"--die-at", format("group_half:{}", step)};
      EXPECT_EQ(job.run(3, 20, group)[0].exit_code(), 5);
    }
    group.of.clear();
    std::filesystem::remove_all(job.local(2));
    const Runs runs = job.run(3, 8, group);
    expect_all_exit(runs, 0);
    expect_all_hold_what_they_should(job, runs);
    EXPECT_GE(runs[0].started()["restored"]["step"], 3);
  }
}

TEST(Ranks, OneMoreThanTheGroupSurvivesIsTooMany) {
  Job job(mixed_state());
  const Job::Options parity{.words = {"--group", "xor", "--host", "h{rank}", "--when-behind", "wait"}};
  expect_all_exit(job.run(4, 7, parity), 0);
  std::filesystem::remove_all(job.local(1));
  std::filesystem::remove_all(job.local(3));
  expect_all_exit(job.run(4, 9, parity), 4);
}

TEST(Ranks, AGroupNeedsSeveralHosts) {
  Job job(mixed_state());
  expect_all_exit(job.run(2, 3, {.words = {"--group", "partner", "--host", "one"}}), 2);
  expect_all_exit(job.run(2, 3, {.words = {"--group", "rs:2", "--host", "h{rank}"}}), 2);
  expect_all_exit(job.run(2, 3, {.words = {"--group", "rs:8", "--host", "h{rank}"}}), 2);
  expect_all_exit(job.run(2, 3, {.words = {"--group", "rs:0", "--host", "h{rank}"}}), 2);
}

TEST(RanksTogether, StartedUnlikeEachOtherTheyDoNotMeet) {
  Job job(mixed_state());
  Job::Options options;
  options.of[1] = {"--external", job.folder("runs")};
  expect_all_exit(job.run(2, 3, options), 2);
  EXPECT_TRUE(job.shards(0).empty());
}

TEST(RanksTogether, RanksThatWouldTrainUnlikeEachOtherDoNotMeet) {
  Job job(mixed_state());
  Job::Options options;
  options.of[1] = {"--every", "2"};
  expect_all_exit(job.run(2, 3, options), 2);
}

TEST(RanksTogether, TwoJobsDoNotShareAFolder) {
  Job job(mixed_state());
  auto first = job.start(1, 100'000, {.words = {"--step-ms", "20"}});
  ASSERT_TRUE(first[0]->line());
  EXPECT_EQ(job.run(1, 3, {.words = {"--patience", "0.2"}})[0].exit_code(), 1);
  first[0]->end(SIGKILL);
  EXPECT_EQ(job.run(1, 1)[0].exit_code(), 0);
}

TEST(RanksTogether, WhoDoesNotComeIsNamed) {
  Job job(mixed_state());
  auto processes = job.start(2, 3, {.words = {"--patience", "1"}});
  processes[1]->end(SIGKILL);
  EXPECT_EQ(Job::finish(*processes[0]).exit_code(), 5);
}

/// A rank dies at each durable step, in turn; what was acknowledged is there when the job is started again, with as
/// many ranks and with fewer.
class RanksThatDie : public ::testing::TestWithParam<std::tuple<const char*, std::uint32_t>> {};

TEST_P(RanksThatDie, LoseNothingThatWasAcknowledged) {
  const auto [point, victim] = GetParam();
  Job job(mixed_state());
  const std::vector<std::string> external = {"--external", job.folder("runs"), "--when-behind", "wait", "--group",
                                             "xor",        "--host",           "h{rank}"};
  expect_all_exit(job.run(3, 6, {.words = external}), 0);
  Job::Options options{.words = external};
  options.words.insert(options.words.end(), {"--step-ms", "5"});
  options.of[victim] = {"--die-at", format("{}:9", point)};
  const Runs died = job.run(3, 100'000, options);
  std::uint64_t acknowledged = 0;
  std::set<std::uint64_t> numbers;
  for (std::uint32_t rank = 0; rank < died.size(); ++rank) {
    acknowledged = std::max(
        {acknowledged, died[rank].reached("local"), died[rank].reached("group"), died[rank].reached("external")});
    for (const Json& line : died[rank].events("captured")) numbers.insert(line["version"].get<std::uint64_t>());
    if (rank == victim) {
      EXPECT_TRUE(WIFSIGNALED(died[rank].status));
      continue;
    }
    EXPECT_EQ(died[rank].exit_code(), 5);
    ASSERT_EQ(died[rank].events("lost").size(), 1U);
    EXPECT_EQ(died[rank].events("lost")[0]["peers"], Json::array({victim}));
  }
  const Runs again = job.run(3, 12, {.words = external});
  expect_all_hold_what_they_should(job, again);
  EXPECT_GE(again[0].started()["restored"]["version"], acknowledged);
  for (const Json& line : again[0].events("captured")) {
    EXPECT_FALSE(numbers.contains(line["version"].get<std::uint64_t>())) << "a number was given twice";
  }
  const Runs fewer = job.run(2, 20, {.words = external});
  expect_all_exit(fewer, 0);
  expect_all_hold_what_they_should(job, fewer);
  EXPECT_GE(fewer[0].started()["restored"]["version"], again[0].reached("external"));
}

INSTANTIATE_TEST_SUITE_P(AtEachStep, RanksThatDie,
                         ::testing::Combine(::testing::Values("captured", "local_half", "local_synced", "group_half",
                                                              "group_synced", "external_half", "external_synced"),
                                            ::testing::Values(0U, 2U)),
                         [](const auto& one) {
                           return format("{}_{}", std::get<0>(one.param), std::get<1>(one.param));
                         });

}  // namespace
}  // namespace freshet::test
