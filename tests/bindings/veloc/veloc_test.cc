// SPDX-License-Identifier: Apache-2.0
/// VELOC's C interface, by a C program under mpirun: what it restores, and that no failure is a success, or the
/// program's end unless what is there cannot be known.

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "core/base/format.h"
#include "repo/backend/backend.h"
#include "tests/support/child_process.h"
#include "tests/support/free_port.h"
#include "tests/support/small_disk.h"
#include "tests/support/temporary_folder.h"

namespace freshet {
namespace {

using Strings = std::vector<std::string>;

/// What each rank printed: results in order, by rank and word.
struct Outcome {
  std::map<std::pair<int, std::string>, std::vector<int>> results;
  int status = 0;

  /// Of the word's only, or last, use at the rank.
  int of(int rank, const std::string& word) const {
    const auto at = results.find({rank, word});
    return at == results.end() ? -77 : at->second.back();
  }
};

class Veloc : public ::testing::Test {
 protected:
  void SetUp() override {
    ::setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    ::setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    ::setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 1);
    ::setenv("OMPI_MCA_plm", "isolated", 1);
    ::setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 1);
    configure("");
  }
  /// The usual configuration and more.
  void configure(const std::string& more) const {
    std::ofstream(config_) << format(
        "scratch = {}\n; a comment\npersistent = {} # another\nmode = async\nchksum = true\n{}", folder_ / "scratch",
        folder_ / "persistent", more);
  }
  Outcome run(int ranks, const Strings& words) const {
    Strings all = {FRESHET_MPIRUN, "-np", std::to_string(ranks), FRESHET_VELOC_PROGRAM, config_};
    all.insert(all.end(), words.begin(), words.end());
    ChildProcess process(std::move(all));
    Outcome run;
    while (const auto line = process.line()) {
      std::istringstream text(*line);
      int rank = 0;
      std::string word;
      int result = 0;
      if (text >> rank >> word >> result) run.results[{rank, word}].push_back(result);
    }
    run.status = process.wait();
    return run;
  }
  void lose_scratch() const { std::filesystem::remove_all(folder_ / "scratch"); }

  const TemporaryFolder folder_;
  const std::string config_ = folder_ / "veloc.cfg";
};

TEST_F(Veloc, RegionsOfOtherSizesComeBack) {
  const Outcome first = run(3, {"region:0:1000+", "region:7:0+", "fill:10", "test:heat:0", "checkpoint:heat:3",
                                "fill:20", "checkpoint:heat:5", "wait", "finished", "finalize:0"});
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(first.of(rank, "init"), 0);
    EXPECT_EQ(first.of(rank, "test:heat:0"), -1);
    EXPECT_EQ(first.of(rank, "checkpoint:heat:5"), 0);
    EXPECT_EQ(first.of(rank, "wait"), 0);
    EXPECT_EQ(first.of(rank, "finished"), 1);
    EXPECT_EQ(first.of(rank, "finalize:0"), 0);
  }
  for (const bool lost : {false, true}) {
    if (lost) lose_scratch();
    const Outcome again = run(3, {"test:heat:0", "test:heat:4", "test:heat:2", "region:0:1000+", "region:7:0+",
                                  "restart:heat:5", "same:0", "restart:heat:3", "same:0", "restart_begin:heat:3",
                                  "size:0", "size:7", "size:9", "restart_end", "finalize:0"});
    for (int rank = 0; rank < 3; ++rank) {
      SCOPED_TRACE(format("rank {}, lost {}", rank, lost));
      EXPECT_EQ(again.of(rank, "test:heat:0"), 5);
      EXPECT_EQ(again.of(rank, "test:heat:4"), 3);
      EXPECT_EQ(again.of(rank, "test:heat:2"), -1);
      EXPECT_EQ(again.of(rank, "restart:heat:5"), 0);
      EXPECT_EQ(again.results.at({rank, "same:0"}), (std::vector<int>{20 + rank, 10 + rank}));
      EXPECT_EQ(again.of(rank, "size:0"), 1000 + rank);
      EXPECT_EQ(again.of(rank, "size:7"), rank);
      EXPECT_EQ(again.of(rank, "size:9"), -1);
    }
  }
}

TEST_F(Veloc, ChosenNamedAndNewRegions) {
  const Outcome first = run(2, {"region:1:100", "region:2:100", "named:3:50:other", "fill:1", "begin:heat:1", "some:1",
                                "fill:5", "rest:1", "end:1", "wait", "region:4:70", "fill:8", "checkpoint:heat:2",
                                "wait", "checkpoint:other:2", "wait", "finalize:0"});
  for (const char* word : {"some:1", "rest:1", "end:1", "checkpoint:heat:2", "checkpoint:other:2", "finalize:0"}) {
    EXPECT_EQ(first.of(1, word), 0) << word;
  }
  const Outcome again = run(2, {"region:1:100", "region:2:100", "region:4:70", "restart:heat:1", "same:1", "same:2",
                                "restart_begin:heat:2", "recover_some:4", "recover_some:9", "restart_end", "same:4",
                                "same:1", "named:3:50:other", "restart:other:2", "same:3", "finalize:1"});
  EXPECT_EQ(again.results.at({1, "same:1"}), (std::vector<int>{2, 2})) << "captured before the memory changed";
  EXPECT_EQ(again.of(1, "same:2"), 6);
  EXPECT_EQ(again.of(1, "recover_some:4"), 0);
  EXPECT_EQ(again.of(1, "recover_some:9"), -1);
  EXPECT_EQ(again.of(1, "same:4"), 9);
  EXPECT_EQ(again.of(1, "same:3"), 9);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "scratch/heat")) << "finalize was told to clean up";
}

TEST_F(Veloc, FilesComeBack) {
  EXPECT_EQ(run(2, {"begin:net:4", "write:30", "end:1", "wait", "finalize:0"}).of(1, "end:1"), 0);
  lose_scratch();
  const Outcome again = run(2, {"restart_begin:net:4", "read", "restart_end", "finalize:0"});
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(again.of(rank, "read"), 30 + rank);
}

/// What a program says failed is no version; what a killed rank left half-done is none.
TEST_F(Veloc, NoFalseVersions) {
  const Outcome first = run(2, {"region:0:5000", "fill:1", "checkpoint:heat:1", "wait", "begin:heat:2", "mem", "end:0",
                                "test:heat:0", "finalize:0"});
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(first.of(rank, "end:0"), -1);
    EXPECT_EQ(first.of(rank, "test:heat:0"), 1);
  }
  const Outcome killed =
      run(2, {"region:0:5000", "fill:3", "checkpoint:heat:3", "wait", "begin:heat:4", "mem", "kill:1"});
  EXPECT_NE(killed.status, 0);
  const Outcome again = run(2, {"region:0:5000", "test:heat:0", "restart:heat:3", "same:0", "finalize:0"});
  EXPECT_EQ(again.of(0, "test:heat:0"), 3);
  EXPECT_EQ(again.of(1, "same:0"), 4);
}

TEST_F(Veloc, OtherNumbersOfRanksAreRefused) {
  run(3, {"region:0:100", "checkpoint:heat:1", "wait", "finalize:0"});
  for (const int ranks : {2, 4}) {
    const Outcome other = run(ranks, {"region:0:100", "test:heat:0", "restart:heat:1", "finalize:0"});
    for (int rank = 0; rank < ranks; ++rank) {
      EXPECT_EQ(other.of(rank, "test:heat:0"), -1);
      EXPECT_EQ(other.of(rank, "restart:heat:1"), -1);
      EXPECT_EQ(other.of(rank, "finalize:0"), 0);
    }
  }
  EXPECT_EQ(run(3, {"test:heat:0", "finalize:0"}).of(2, "test:heat:0"), 1);
}

/// A flipped bit in the scratch costs nothing where the persistent copy is good.
TEST_F(Veloc, DamagedScratchIsPassedOver) {
  run(2, {"region:0:50000", "fill:9", "checkpoint:heat:1", "wait", "finalize:0"});
  std::size_t damaged = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder_ / "scratch/heat")) {
    if (entry.path().extension() != ".shard") continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-20'000, std::ios::end);
    file.put('!');
    ++damaged;
  }
  ASSERT_EQ(damaged, 2U);
  const Outcome again = run(2, {"region:0:50000", "restart:heat:1", "same:0", "finalize:0"});
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(again.of(rank, "same:0"), 9 + rank);
}

TEST_F(Veloc, GroupsOfHostsGiveALostScratchBack) {
  std::ofstream(config_) << format("scratch = {}/{{rank}}\ngroup = xor\nfailure_domain = h{{rank}}\n",
                                   folder_ / "scratch");
  run(3, {"region:0:70000", "fill:9", "checkpoint:heat:1", "wait", "finalize:0"});
  std::filesystem::remove_all(folder_ / "scratch/1");
  const Outcome again = run(3, {"region:0:70000", "restart:heat:1", "same:0", "finalize:0"});
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(again.of(rank, "same:0"), 9 + rank);
}

TEST_F(Veloc, ProcessesThatAreAloneShareAScratch) {
  const Outcome first = run(2, {"single:5", "region:0:100", "fill:1", "checkpoint:heat:1", "wait", "finalize:0"});
  EXPECT_EQ(first.of(1, "checkpoint:heat:1"), 0);
  const Outcome again = run(2, {"single:5", "region:0:100", "restart:heat:1", "same:0", "finalize:0"});
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(again.of(rank, "same:0"), 1 + rank);
}

/// More than the first table has room for, in the scratch and from the persistent copy.
TEST_F(Veloc, ThousandsOfRegions) {
  const Outcome first = run(2, {"region:3:10+", "many:5000:24", "fill:40", "checkpoint:heat:1", "wait", "finalize:0"});
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(first.of(rank, "wait"), 0);
  for (const bool lost : {false, true}) {
    if (lost) lose_scratch();
    const Outcome again = run(2, {"region:3:10+", "many:5000:24", "test:heat:0", "restart:heat:1", "block", "same:3",
                                  "fill:60", "checkpoint:heat:2", "wait", "restart:heat:1", "block", "finalize:0"});
    for (int rank = 0; rank < 2; ++rank) {
      SCOPED_TRACE(format("rank {}, lost {}", rank, lost));
      EXPECT_EQ(again.results.at({rank, "block"}), (std::vector<int>{40 + rank, 40 + rank}));
      EXPECT_EQ(again.of(rank, "same:3"), 40 + rank);
      EXPECT_EQ(again.of(rank, "checkpoint:heat:2"), 0);
    }
  }
}

TEST_F(Veloc, VersionsGoWhenThereAreEnough) {
  configure("max_versions = 2\nscratch_versions = 1\n");
  Strings words = {"region:0:1000"};
  for (int version = 1; version <= 5; ++version) {
    const Strings more = {format("fill:{}", version), format("checkpoint:heat:{}", version), "wait"};
    words.insert(words.end(), more.begin(), more.end());
  }
  words.emplace_back("finalize:0");
  EXPECT_EQ(run(2, words).of(1, "finalize:0"), 0);
  std::size_t shards = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder_ / "scratch/heat")) {
    shards += entry.path().extension() == ".shard" ? 1 : 0;
  }
  EXPECT_EQ(shards, 2U) << "one of each rank";
  lose_scratch();
  const Outcome again =
      run(2, {"region:0:1000", "test:heat:0", "test:heat:4", "test:heat:3", "restart:heat:4", "same:0", "finalize:0"});
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(again.of(rank, "test:heat:0"), 5);
    EXPECT_EQ(again.of(rank, "test:heat:4"), 4);
    EXPECT_EQ(again.of(rank, "test:heat:3"), -1);
    EXPECT_EQ(again.of(rank, "same:0"), 4 + rank);
  }
}

/// The call returns when the version is where it goes: nothing is under way then.
/// The rank that dies is the one that was asked: another's death would be news to it while it still waits to be told.
TEST_F(Veloc, SyncWaits) {
  configure("mode = sync\n");
  const Outcome first = run(2, {"region:0:3000000", "fill:1", "checkpoint:heat:1", "finished", "kill:1"});
  EXPECT_EQ(first.of(1, "checkpoint:heat:1"), 0);
  EXPECT_EQ(first.of(1, "finished"), 1);
  lose_scratch();
  EXPECT_EQ(run(2, {"region:0:3000000", "restart:heat:1", "same:0", "finalize:0"}).of(1, "same:0"), 2);
}

TEST_F(Veloc, RanksMeetWhereTheConfigurationSays) {
  const std::string meet = format("meet = tcp://127.0.0.1:{}\n", free_port());
  configure(meet);
  const Outcome used = run(2, {"region:0:100", "fill:1", "checkpoint:heat:1", "wait", "finalize:0"});
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(used.of(rank, "wait"), 0);
  configure("meet = nowhere\n");
  const Outcome bad = run(2, {"region:0:100", "checkpoint:heat:2", "test:heat:0", "finalize:0"});
  EXPECT_EQ(bad.of(1, "checkpoint:heat:2"), -1);
  EXPECT_EQ(bad.status, 0);
}

/// A variable goes before the file's line, and a file is not needed.
TEST_F(Veloc, TheEnvironmentConfigures) {
  const std::string place = folder_ / "elsewhere/{rank}";
  ::setenv("VELOC_SCRATCH", place.c_str(), 1);
  ::setenv("VELOC_MODE", "sync", 1);
  const Outcome both = run(2, {"region:0:100", "fill:1", "checkpoint:heat:1", "finished", "finalize:0"});
  std::ofstream(config_) << "";
  const Outcome alone = run(2, {"region:0:100", "restart:heat:1", "same:0", "finalize:0"});
  ::setenv("VELOC_MODE", "quick", 1);
  const Outcome bad = run(2, {"finalize:0"});
  ::unsetenv("VELOC_SCRATCH");
  ::unsetenv("VELOC_MODE");
  EXPECT_EQ(both.of(1, "finished"), 1);
  EXPECT_TRUE(std::filesystem::exists(folder_ / "elsewhere/1/heat"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "scratch"));
  EXPECT_EQ(alone.of(1, "same:0"), 2);
  EXPECT_EQ(bad.of(0, "init"), -1);
}

TEST_F(Veloc, CleanupTakesTheScratchAlone) {
  const Outcome first =
      run(2, {"region:0:100", "fill:1", "checkpoint:heat:1", "checkpoint:rod:1", "wait", "cleanup:heat", "test:heat:0",
              "checkpoint:heat:2", "wait", "cleanup:../x", "cleanup:heat", "finalize:0"});
  EXPECT_EQ(first.results.at({1, "cleanup:heat"}), (std::vector<int>{0, 0}));
  EXPECT_EQ(first.of(1, "cleanup:../x"), -1);
  EXPECT_EQ(first.of(1, "test:heat:0"), 1) << "from the persistent repository";
  EXPECT_EQ(first.of(1, "checkpoint:heat:2"), 0);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "scratch/heat"));
  EXPECT_TRUE(std::filesystem::exists(folder_ / "scratch/rod"));
  const Outcome again = run(2, {"region:0:100", "restart:heat:2", "same:0", "finalize:0"});
  EXPECT_EQ(again.of(1, "same:0"), 2);
}

/// The flush fails: wait says so, finalize says so, and the version is in the scratch all the same.
TEST_F(Veloc, AFailedFlushIsSaid) {
  const SmallDisk disk(20'000'000);
  if (!disk) GTEST_SKIP() << disk.reason();
  std::ofstream(config_) << format("scratch = {}\npersistent = {}\n", folder_ / "scratch", disk / "runs");
  const Outcome waits = run(2, {"region:0:15000000", "fill:5", "checkpoint:heat:1", "wait", "finalize:0"});
  const Outcome ends = run(2, {"region:0:15000000", "fill:6", "checkpoint:heat:2", "finalize:0"});
  const Outcome again = run(2, {"region:0:15000000", "test:heat:0", "restart:heat:2", "same:0", "finalize:0"});
  EXPECT_EQ(waits.status, 0);
  EXPECT_EQ(ends.status, 0);
  for (int rank = 0; rank < 2; ++rank) {
    SCOPED_TRACE(format("rank {}", rank));
    EXPECT_EQ(waits.of(rank, "checkpoint:heat:1"), 0);
    EXPECT_EQ(waits.of(rank, "wait"), -1);
    EXPECT_EQ(waits.of(rank, "finalize:0"), -1);
    EXPECT_EQ(ends.of(rank, "finalize:0"), -1);
    EXPECT_EQ(again.of(rank, "test:heat:0"), 2);
    EXPECT_EQ(again.of(rank, "same:0"), 6 + rank);
  }
}

/// Where rank 0 cannot make the repository, nobody waits for it: with the usual patience this would take five minutes.
TEST_F(Veloc, ARepositoryThatCannotBeMadeIsSaid) {
  const SmallDisk disk(1'000'000);
  if (!disk) GTEST_SKIP() << disk.reason();
  std::ofstream(config_) << format("scratch = {}\npersistent = {}\n", folder_ / "scratch", disk / "runs");
  const Outcome failed = run(2, {"region:0:100", "checkpoint:heat:1", "test:heat:0", "finalize:0"});
  EXPECT_EQ(failed.status, 0);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(failed.of(rank, "checkpoint:heat:1"), -1);
    EXPECT_EQ(failed.of(rank, "test:heat:0"), -1);
  }
}

/// A version that has no room in the scratch does not exist; a smaller one then does.
TEST_F(Veloc, AFullScratchIsSaid) {
  const SmallDisk disk(4'000'000);
  if (!disk) GTEST_SKIP() << disk.reason();
  std::ofstream(config_) << format("scratch = {}\n", disk / "scratch");
  const Outcome first = run(
      2, {"region:0:400000", "fill:1", "checkpoint:heat:1", "wait", "region:1:9000000", "fill:2", "checkpoint:heat:2",
          "wait", "region:1:10", "fill:3", "checkpoint:heat:3", "wait", "checkpoint:heat:4", "wait", "finalize:0"});
  EXPECT_EQ(first.status, 0);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(first.results.at({rank, "wait"}), (std::vector<int>{0, -1, 0, 0})) << "rank " << rank;
  }
  const Outcome again = run(
      2, {"region:0:400000", "region:1:10", "test:heat:0", "test:heat:2", "restart:heat:4", "same:0", "finalize:0"});
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(again.of(rank, "test:heat:0"), 4);
    EXPECT_NE(again.of(rank, "test:heat:2"), 2);
    EXPECT_EQ(again.of(rank, "same:0"), 3 + rank);
  }
}

/// Of one version that was made twice, the later one counts, whole.
TEST_F(Veloc, TheSameVersionTwice) {
  const Outcome first =
      run(2, {"region:0:100000", "fill:1", "checkpoint:heat:7", "fill:50", "checkpoint:heat:7", "wait", "finalize:0"});
  EXPECT_EQ(first.results.at({1, "checkpoint:heat:7"}), (std::vector<int>{0, 0}));
  for (const bool lost : {false, true}) {
    if (lost) lose_scratch();
    const Outcome again = run(2, {"region:0:100000", "test:heat:0", "restart:heat:7", "same:0", "finalize:0"});
    for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(again.of(rank, "same:0"), 50 + rank) << "lost " << lost;
  }
}

/// Programs compiled against what the component `veloc` installs: regions, files, and a job that is broken off.
TEST_F(Veloc, ProgramsPassAgainstTheInstalledComponent) {
  ::setenv("FRESHET_BUILD_DIR", FRESHET_BUILD, 1);
  ::setenv("RANKS", "3", 1);
  ChildProcess script({FRESHET_PROVE_VELOC});
  std::string said;
  while (const auto line = script.line()) said += *line + "\n";
  EXPECT_EQ(script.wait(), 0);
  EXPECT_EQ(said, "passed: heatdis_mem\npassed: heatdis_file\npassed: heatdis_fault\n");
}

/// A program takes -1 for "begin at step 0". Where somebody may have a version, the job ends in its place.
TEST_F(Veloc, WhatCannotBeKnownEndsTheJob) {
  run(2, {"region:0:100", "checkpoint:heat:1", "wait", "finalize:0"});
  lose_scratch();
  const std::string persistent = folder_ / "persistent";
  const Strings looks = {"region:0:100", "test:heat:0", "finalize:0"};
  {
    // Its owner neither offers it nor ends.
    const auto owner = open_rocks_backend({.folder = persistent, .create = false, .read_only = false});
    ASSERT_TRUE(owner) << owner.error().message();
    const Outcome unknown = run(2, looks);
    EXPECT_NE(unknown.status, 0);
    EXPECT_EQ(unknown.of(0, "test:heat:0"), -77) << "no answer at all";
  }
  EXPECT_EQ(run(2, looks).of(0, "test:heat:0"), 1);
}

/// The job goes on from the scratch, and checkpoints there.
TEST_F(Veloc, ADamagedPersistentFolderIsPassedOver) {
  run(2, {"region:0:100", "fill:1", "checkpoint:heat:1", "wait", "finalize:0"});
  std::ofstream(folder_ / "persistent/CURRENT", std::ios::trunc) << "MANIFEST-000001 and more\n";
  const Outcome again = run(2, {"region:0:100", "test:heat:0", "restart:heat:1", "same:0", "fill:7", "checkpoint:heat:2",
                                "wait", "finished", "finalize:0"});
  EXPECT_EQ(again.status, 0);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(again.of(rank, "test:heat:0"), 1);
    EXPECT_EQ(again.of(rank, "same:0"), 1 + rank);
    EXPECT_EQ(again.of(rank, "checkpoint:heat:2"), 0);
    EXPECT_EQ(again.of(rank, "wait"), 0);
  }
  lose_scratch();
  EXPECT_NE(run(2, {"region:0:100", "test:heat:0", "finalize:0"}).status, 0) << "nobody knows what it had";
}

/// Wrong use is a return code, and the program goes on.
TEST_F(Veloc, FailuresAreReturnCodes) {
  const Outcome used = run(2, {"region:0:100", "fill:1", "mem", "end:1", "read", "restart_end", "begin:../x:1",
                               "begin:heat:-1", "begin:heat:1", "begin:heat:2", "some:9", "mem", "end:1", "wait",
                               "region:0:50", "restart:heat:1", "restart:heat:9", "finalize:0", "mem"});
  for (const char* word : {"read", "restart_end", "begin:../x:1", "begin:heat:-1", "begin:heat:2", "some:9",
                           "restart:heat:1", "restart:heat:9"}) {
    EXPECT_EQ(used.of(1, word), -1) << word;
  }
  EXPECT_EQ(used.results.at({1, "mem"}), (std::vector<int>{-1, 0, -1}));
  EXPECT_EQ(used.results.at({1, "end:1"}), (std::vector<int>{-1, 0}));
  EXPECT_EQ(used.status, 0);
  for (const std::string line :
       {"persitent = x", "mode = quick", "group = rs:9", "max_versions = many", "no equals sign"}) {
    configure(line + "\n");
    const Outcome bad = run(2, {"region:0:100", "checkpoint:heat:7"});
    EXPECT_EQ(bad.of(0, "init"), -1) << line;
    EXPECT_EQ(bad.of(1, "checkpoint:heat:7"), -1) << line;
    EXPECT_EQ(bad.status, 0) << line;
  }
}

}  // namespace
}  // namespace freshet
