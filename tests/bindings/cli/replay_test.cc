// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "bindings/cli/stream/replay_pace.h"
#include "tests/bindings/cli/support/model_bytes.h"
#include "tests/bindings/cli/support/program.h"
#include "tests/support/temporary_folder.h"

namespace freshet::cli_test {
namespace {

using testing::HasSubstr;

class Replay : public testing::Test {
 protected:
  Replay() {
    store(chain(1, 2, 3), "");
    store(chain(1, 2, 4), "run@1");
    store(chain(1, 5, 4), "run@2");
  }

  Environment environment() const { return {{"FRESHET_RUN_DIR", folder_ / "run"}}; }
  std::string repository() const { return folder_ / "repository"; }

  void store(const ModelBytes& model, const std::string& ancestor) {
    write_file(folder_ / "model.safetensors", encoded(model));
    std::vector<std::string> put{
        "repo", "--repo", repository(), "put", "run", "--weights", folder_ / "model.safetensors"};
    if (!ancestor.empty()) put.insert(put.end(), {"--ancestor", ancestor});
    const Ended ended = cli_test::run(put, environment());
    ASSERT_EQ(ended.exit_code, 0) << ended.err;
  }

  Running start(std::vector<std::string> arguments) const {
    arguments.push_back("--json");
    return Running(arguments, environment());
  }

  TemporaryFolder folder_;
};

TEST_F(Replay, ASubscriberGetsTheRunAgainByteForByte) {
  Running replay = start({"replay", "run", "--repo", repository(), "--fast", "--as", "again", "--wait-for", "1"});
  const Ended subscriber = start({"subscribe", "again", "--every", "--out", folder_ / "out", "--count", "3"}).wait();
  ASSERT_EQ(subscriber.exit_code, 0) << subscriber.err;
  EXPECT_EQ(model_in(folder_ / "out/again@1.safetensors").tensors, chain(1, 2, 3).tensors);
  EXPECT_EQ(model_in(folder_ / "out/again@2.safetensors").tensors, chain(1, 2, 4).tensors);
  EXPECT_EQ(model_in(folder_ / "out/again@3.safetensors").tensors, chain(1, 5, 4).tensors);
  const int changed[] = {3, 1, 1};
  for (int version = 1; version <= 3; ++version) {
    const Json line = replay.next_json();
    EXPECT_EQ(line["model"], "again");
    EXPECT_EQ(line["version"], version);
    EXPECT_EQ(line["replay_of"], "run@" + std::to_string(version));
    EXPECT_EQ(line["changed_tensors"], changed[version - 1]) << "owner maps say what changed";
  }
  replay.signal(SIGINT);
  EXPECT_EQ(replay.wait().exit_code, 130);
}

TEST_F(Replay, APartIsReplayed) {
  const Ended ended =
      start({"replay", "run", "--repo", repository(), "--fast", "--from", "2", "--to", "2", "--linger", "0"}).wait();
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_EQ(ended.json()["replay_of"], "run@2");
}

TEST_F(Replay, WhatIsNotThereIsSaid) {
  EXPECT_EQ(start({"replay", "nope", "--repo", repository(), "--linger", "0"}).wait().exit_code, 3);
  const Ended beyond = start({"replay", "run", "--repo", repository(), "--from", "4", "--linger", "0"}).wait();
  EXPECT_EQ(beyond.exit_code, 3);
  EXPECT_THAT(beyond.err, HasSubstr("--from"));
  EXPECT_EQ(start({"replay", "run", "--repo", repository(), "--speed", "0"}).wait().exit_code, 2);
  EXPECT_EQ(start({"replay", "run", "--repo", repository(), "--speed", "nan"}).wait().exit_code, 2);
}

using cli::ReplayPace;
using std::chrono::seconds;
constexpr std::int64_t kSecond = 1'000'000'000;

TEST(ReplayPaceTest, VersionsAreAsFarApartAsTheyWereMade) {
  const Time start{seconds(100)};
  ReplayPace pace({}, start);
  EXPECT_EQ(pace.next(50 * kSecond), start);
  EXPECT_EQ(pace.next(53 * kSecond), start + seconds(3));
  EXPECT_EQ(pace.next(54 * kSecond), start + seconds(4));
}

TEST(ReplayPaceTest, FasterSlowerAndWithoutWaiting) {
  const Time start{seconds(100)};
  ReplayPace fast({.speed = 4}, start), slow({.speed = 0.5}, start),
      none({.speed = std::numeric_limits<double>::infinity()}, start);
  for (ReplayPace* pace : {&fast, &slow, &none}) EXPECT_EQ(pace->next(0), start);
  EXPECT_EQ(fast.next(8 * kSecond), start + seconds(2));
  EXPECT_EQ(slow.next(8 * kSecond), start + seconds(16));
  EXPECT_EQ(none.next(8 * kSecond), start);
}

TEST(ReplayPaceTest, AClockThatWentBackAndLongPausesAreNoTrouble) {
  const Time start{seconds(100)};
  ReplayPace pace({.pause_max = seconds(10)}, start);
  EXPECT_EQ(pace.next(90 * kSecond), start);
  EXPECT_EQ(pace.next(40 * kSecond), start);
  EXPECT_EQ(pace.next(45 * kSecond), start + seconds(5));
  EXPECT_EQ(pace.next(std::numeric_limits<std::int64_t>::max()), start + seconds(15));
  EXPECT_EQ(pace.next(std::numeric_limits<std::int64_t>::min()), start + seconds(15));
}

}  // namespace
}  // namespace freshet::cli_test
