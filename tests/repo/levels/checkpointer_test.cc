// SPDX-License-Identifier: Apache-2.0
#include "repo/levels/checkpointer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <latch>
#include <random>
#include <stop_token>
#include <thread>

#include "core/base/format.h"
#include "repo/backend/backend.h"
#include "repo/levels/resting.h"
#include "tests/fault/fault_env.h"
#include "tests/repo/levels/support/held_memory.h"
#include "tests/support/free_port.h"
#include "tests/support/refused.h"
#include "tests/support/small_disk.h"
#include "tests/support/temporary_folder.h"

namespace freshet {
namespace {

constexpr auto kLong = std::chrono::seconds(60);

using test::alone;
using Memory = test::HeldMemory;

std::vector<LaidTensor> tensors() { return test::three_tensors(); }

TEST(Checkpointer, ValuesAreThoseOfTheStepThoughTheNextBeginsAtOnce) {
  const TemporaryFolder folder;
  Memory memory(1, 0);
  {
    const auto opened = Checkpointer::open(alone(folder.path()), tensors());
    ASSERT_TRUE(opened) << opened.error().message();
    Checkpointer& checkpointer = **opened;
    const auto writable = memory.writable();
    const auto restored = checkpointer.restore(writable);
    ASSERT_TRUE(restored);
    EXPECT_FALSE(*restored);
    VersionNumber last = 0;
    for (int step = 1; step <= 20; ++step) {
      const auto version = checkpointer.begin(static_cast<std::uint64_t>(step));
      ASSERT_TRUE(version) << version.error().message();
      for (std::size_t i = 3; i-- > 0;) {
        std::memset(memory.held[i].data(), step, memory.held[i].size());
        ASSERT_TRUE(checkpointer.capture(i, memory.held[i]));
        std::memset(memory.held[i].data(), 0xEE, memory.held[i].size());
      }
      const auto captured = checkpointer.end();
      ASSERT_TRUE(captured) << captured.error().message();
      last = captured->version;
    }
    EXPECT_TRUE(checkpointer.wait(last, CheckpointLevel::local, kLong));
    EXPECT_EQ(checkpointer.poll(last, CheckpointLevel::local), true);
    EXPECT_FALSE(checkpointer.poll(last, CheckpointLevel::external)) << "this job has no such level";
    EXPECT_FALSE(checkpointer.poll(last + 1, CheckpointLevel::local));
    ASSERT_TRUE(checkpointer.finish(kLong));
  }
  const auto opened = Checkpointer::open(alone(folder.path()), tensors());
  ASSERT_TRUE(opened);
  const auto writable = memory.writable();
  const auto restored = (*opened)->restore(writable);
  ASSERT_TRUE(restored && *restored);
  EXPECT_EQ((*restored)->step, 20U);
  EXPECT_TRUE(memory.is_of(20));
}

TEST(Checkpointer, EndsWhileItsThreadsWork) {
  const TemporaryFolder folder;
  Memory memory(1, 0);
  for (int round = 1; round <= 30; ++round) {
    const auto opened = Checkpointer::open(alone(folder.path()), tensors());
    ASSERT_TRUE(opened) << opened.error().message();
    const auto writable = memory.writable();
    ASSERT_TRUE((*opened)->restore(writable));
    ASSERT_TRUE((*opened)->checkpoint(static_cast<std::uint64_t>(round), memory.views()));
  }
}

TEST(Checkpointer, EveryWaitEndsWhenItsCallerStopsIt) {
  const TemporaryFolder folder;
  Memory memory(1, 0);
  std::latch goes_on(1);
  Checkpointer::Options options = alone(folder.path());
  options.when_behind = levels::WhenBehind::wait;
  options.at_point = [&](std::string_view point, std::uint64_t) {
    if (point == "local_half") goes_on.wait();
  };
  const auto opened = Checkpointer::open(options, tensors());
  ASSERT_TRUE(opened) << opened.error().message();
  Checkpointer& checkpointer = **opened;
  const auto writable = memory.writable();
  ASSERT_TRUE(checkpointer.restore(writable));
  const auto captured = checkpointer.checkpoint(1, memory.views());
  EXPECT_TRUE(captured) << captured.error().message();
  const VersionNumber version = captured ? captured->version : 0;
  const std::vector<std::function<Status(const std::stop_token&)>> waits = {
      [&](const std::stop_token& stop) {
        return checkpointer.wait(version, CheckpointLevel::local, Duration::max(), stop);
      },
      [&](const std::stop_token& stop) { return checkpointer.settle(Duration::max(), stop); },
      [&](const std::stop_token& stop) -> Status {
        FRESHET_TRY(checkpointer.checkpoint(2, memory.views(), stop));
        return {};
      },
  };
  for (std::size_t i = 0; i < waits.size(); ++i) {
    SCOPED_TRACE(i);
    std::stop_source early;
    early.request_stop();
    const Status before = waits[i](early.get_token());
    EXPECT_TRUE(!before && before.error().code() == Code::cancelled);
    std::stop_source late;
    std::thread stops([&late] { late.request_stop(); });
    const Status during = waits[i](late.get_token());
    EXPECT_TRUE(!during && during.error().code() == Code::cancelled);
    stops.join();
  }
  goes_on.count_down();
  EXPECT_TRUE(checkpointer.wait(version, CheckpointLevel::local, kLong)) << "and the next wait is as ever";
}

TEST(Checkpointer, AStopEndsTheMeetingOfTheRanks) {
  const TemporaryFolder folder;
  Checkpointer::Options options = alone(folder.path());
  options.ranks = 2;
  options.meet = "tcp://127.0.0.1:" + std::to_string(free_port());
  options.patience = std::chrono::minutes(10);
  std::stop_source early;
  early.request_stop();
  EXPECT_TRUE(is_refused(Checkpointer::open(options, tensors(), early.get_token()), Code::cancelled));
}

TEST(Checkpointer, RollsBackInMemory) {
  const TemporaryFolder folder;
  Memory memory(1, 0);
  const auto opened = Checkpointer::open(alone(folder.path()), tensors());
  ASSERT_TRUE(opened);
  const auto writable = memory.writable();
  ASSERT_TRUE((*opened)->restore(writable));
  memory.fill(3);
  const auto captured = (*opened)->checkpoint(3, memory.views());
  ASSERT_TRUE(captured);
  ASSERT_TRUE((*opened)->wait(captured->version, CheckpointLevel::local, kLong));
  memory.fill(9);
  const auto restored = (*opened)->restore(writable);
  ASSERT_TRUE(restored && *restored);
  EXPECT_EQ((*restored)->from, std::set<CheckpointLevel>{CheckpointLevel::memory});
  EXPECT_TRUE(memory.is_of(3));
  memory.fill(4);
  const auto next = (*opened)->checkpoint(4, memory.views());
  ASSERT_TRUE(next);
  EXPECT_GT(next->version, captured->version);
  EXPECT_TRUE((*opened)->wait(next->version, CheckpointLevel::local, kLong));
}

/// Of a damaged version nothing is left in what it was read into: the one before it comes back.
TEST(Checkpointer, ADamagedShardGivesWayToTheVersionBeforeIt) {
  const std::vector<LaidTensor> layers = {
      {.spec = {.name = "a", .dtype = DType::u8, .shape = {(3 << 20) + 5}}, .layout = {}},
      {.spec = {.name = "b", .dtype = DType::u8, .shape = {100}}, .layout = {}},
      {.spec = {.name = "c", .dtype = DType::u8, .shape = {2 << 20}}, .layout = {}}};
  std::mt19937_64 random(20261125);
  for (int round = 0; round < 4; ++round) {
    const TemporaryFolder folder;
    Memory memory(1, 0, layers);
    {
      auto options = alone(folder.path());
      options.keep[CheckpointLevel::local] = 5;
      options.when_behind = levels::WhenBehind::wait;
      const auto opened = Checkpointer::open(std::move(options), layers);
      ASSERT_TRUE(opened) << opened.error().message();
      const auto writable = memory.writable();
      ASSERT_TRUE((*opened)->restore(writable));
      for (int step = 1; step <= 2; ++step) {
        memory.fill(step);
        ASSERT_TRUE((*opened)->checkpoint(static_cast<std::uint64_t>(step), memory.views()));
      }
      ASSERT_TRUE((*opened)->finish(kLong));
    }
    std::vector<std::filesystem::path> shards;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path())) {
      if (entry.path().extension() == ".shard") shards.push_back(entry.path());
    }
    std::ranges::sort(shards);
    ASSERT_EQ(shards.size(), 2U);
    std::ifstream shard(shards[1], std::ios::binary);
    const std::string content{std::istreambuf_iterator<char>(shard), {}};
    std::uint64_t at = 0;
    while (content.substr(at, 4) != "\2\2\2\2") at = random() % content.size();  // One of a tensor's.
    SCOPED_TRACE(format("byte {} of {}", at, content.size()));
    std::filesystem::permissions(shards[1], std::filesystem::perms::owner_all);
    std::fstream file(shards[1], std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(at));
    file.put('\x77');
    file.close();
    memory.fill(0xDD);
    const auto opened = Checkpointer::open(alone(folder.path()), layers);
    ASSERT_TRUE(opened) << opened.error().message();
    const auto writable = memory.writable();
    const auto restored = (*opened)->restore(writable);
    ASSERT_TRUE(restored && *restored) << restored.error().message();
    EXPECT_EQ((*restored)->step, 1U);
    EXPECT_TRUE(memory.is_of(1));
  }
}

TEST(Checkpointer, WrongUseIsRefusedByNameAndTheNextVersionWorks) {
  const TemporaryFolder folder;
  Memory memory(1, 0);
  const auto opened = Checkpointer::open(alone(folder.path()), tensors());
  ASSERT_TRUE(opened);
  Checkpointer& checkpointer = **opened;
  EXPECT_EQ(checkpointer.begin(1).error().code(), Code::failed_precondition);
  const auto writable = memory.writable();
  EXPECT_EQ(checkpointer.restore(std::span(writable).first(2)).error().code(), Code::invalid_argument);
  ASSERT_TRUE(checkpointer.restore(writable));
  EXPECT_EQ(checkpointer.end().error().code(), Code::failed_precondition);
  const auto begun = checkpointer.begin(1);
  ASSERT_TRUE(begun);
  EXPECT_FALSE(checkpointer.begin(2));
  ASSERT_TRUE(checkpointer.capture(0, memory.held[0]));
  const auto ended = checkpointer.end();
  ASSERT_FALSE(ended);
  EXPECT_NE(ended.error().message().find("tensor b"), std::string::npos) << ended.error().message();
  EXPECT_FALSE(checkpointer.wait(*begun, CheckpointLevel::memory, kLong));
  ASSERT_TRUE(checkpointer.begin(2));
  EXPECT_EQ(checkpointer.capture(0, Bytes(memory.held[0]).first(4)).error().code(), Code::invalid_argument);
  EXPECT_EQ(checkpointer.capture(7, memory.held[0]).error().code(), Code::invalid_argument);
  EXPECT_FALSE(checkpointer.end());
  const auto whole = checkpointer.checkpoint(3, memory.views());
  ASSERT_TRUE(whole);
  EXPECT_TRUE(checkpointer.wait(whole->version, CheckpointLevel::local, kLong));
  EXPECT_TRUE(checkpointer.finish(kLong));
  auto bad = alone(folder.path());
  bad.model = "../net";
  EXPECT_EQ(Checkpointer::open(bad, tensors()).error().code(), Code::invalid_argument);
  bad = alone(folder.path());
  bad.lost_after = {};
  EXPECT_EQ(Checkpointer::open(bad, tensors()).error().code(), Code::invalid_argument) << "all peers at once";
}

TEST(Checkpointer, OtherShapesAreAnErrorAndOtherTensorsAreFresh) {
  const TemporaryFolder folder;
  Memory memory(1, 0);
  {
    const auto opened = Checkpointer::open(alone(folder.path()), tensors());
    ASSERT_TRUE(opened);
    const auto writable = memory.writable();
    ASSERT_TRUE((*opened)->restore(writable));
    ASSERT_TRUE((*opened)->checkpoint(1, memory.views()));
    ASSERT_TRUE((*opened)->finish(kLong));
  }
  auto other = tensors();
  other[0].spec.shape = {49'999};
  {
    const auto opened = Checkpointer::open(alone(folder.path()), other);
    ASSERT_TRUE(opened);
    auto held = memory.held;
    held[0].resize(49'999 * 4);
    const std::vector<MutableBytes> writable(held.begin(), held.end());
    const auto restored = (*opened)->restore(writable);
    ASSERT_FALSE(restored);
    EXPECT_NE(restored.error().message().find("tensor a is f32[50000]"), std::string::npos)
        << restored.error().message();
  }
  other = tensors();
  other.push_back({.spec = {.name = "grown", .dtype = DType::u8, .shape = {3}}, .layout = {}});
  const auto opened = Checkpointer::open(alone(folder.path()), other);
  ASSERT_TRUE(opened);
  auto held = memory.held;
  held.emplace_back(3, std::byte{7});
  const std::vector<MutableBytes> writable(held.begin(), held.end());
  const auto restored = (*opened)->restore(writable);
  ASSERT_TRUE(restored && *restored);
  EXPECT_EQ((*restored)->fresh, std::vector<std::string>{"grown"});
  EXPECT_EQ(held[3][1], std::byte{7});
}

/// A program that lost a layer: it goes on, and is told what it leaves.
TEST(Checkpointer, TensorsThatTheJobDoesNotHoldAreNamed) {
  const TemporaryFolder folder;
  Memory memory(1, 0);
  {
    const auto opened = Checkpointer::open(alone(folder.path()), tensors());
    ASSERT_TRUE(opened);
    const auto writable = memory.writable();
    ASSERT_TRUE((*opened)->restore(writable));
    ASSERT_TRUE((*opened)->checkpoint(1, memory.views()));
    ASSERT_TRUE((*opened)->finish(kLong));
  }
  auto fewer = tensors();
  fewer.erase(fewer.begin() + 1);
  const auto opened = Checkpointer::open(alone(folder.path()), fewer);
  ASSERT_TRUE(opened);
  Memory less(1, 0, fewer);
  const auto writable = less.writable();
  const auto restored = (*opened)->restore(writable);
  ASSERT_TRUE(restored && *restored);
  EXPECT_EQ((*restored)->left, std::vector<std::string>{"b"});
}

/// Three ranks as threads of this process, over loopback.
TEST(Checkpointer, RanksOfOneProcessAgreeAndServersGetWholeTensors) {
  const TemporaryFolder folder;
  const std::string meet = format("tcp://127.0.0.1:{}", free_port());
  auto repository = std::shared_ptr<Repository>(*Repository::open(make_memory_backend(), {}));
  std::vector<std::thread> ranks;
  std::vector<Status> ended(3);
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto work = [&]() -> Status {
        Checkpointer::Options options = alone(folder / std::to_string(rank));
        options.rank = rank;
        options.ranks = 3;
        options.meet = meet;
        options.when_behind = levels::WhenBehind::wait;
        options.external = [&]() -> Result<std::shared_ptr<Repository>> { return repository; };
        FRESHET_ASSIGN(const auto checkpointer, Checkpointer::open(options, tensors()));
        Memory memory(3, rank);
        const auto writable = memory.writable();
        FRESHET_ASSIGN([[maybe_unused]] const auto restored, checkpointer->restore(writable));
        for (int step = 1; step <= 4; ++step) {
          memory.fill(step);
          FRESHET_ASSIGN(const auto captured,
                         checkpointer->checkpoint(static_cast<std::uint64_t>(step), memory.views()));
          FRESHET_TRY(checkpointer->wait(captured.version, CheckpointLevel::external, kLong));
        }
        return checkpointer->finish(kLong);
      };
      ended[rank] = work();
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (const Status& status : ended) ASSERT_TRUE(status) << status.error().message();
  const auto record = repository->get({"net", 0});
  ASSERT_TRUE(record);
  EXPECT_EQ(record->manifest.step, 4U);
  EXPECT_EQ(record->manifest.architecture->tensors().size(), 5U);
  const auto a = record->manifest.architecture->tensor_named("a");
  ASSERT_TRUE(a);
  std::vector<std::byte> bytes(200'000);
  const Repository::TensorRead read{.tensor = *a, .out = bytes};
  ASSERT_TRUE(repository->read(*record, std::span(&read, 1)));
  EXPECT_TRUE(std::ranges::all_of(bytes, [](std::byte byte) { return byte == std::byte{4}; }));
  const auto lineage = repository->lineage({"net", 4});
  ASSERT_TRUE(lineage);
  EXPECT_EQ(lineage->size(), 4U);
}

TEST(Checkpointer, AFullDiskFailsOneVersionAndIsForgottenWhenThereIsRoom) {
  const SmallDisk disk(3'000'000);
  if (!disk) GTEST_SKIP() << disk.reason();
  Memory memory(1, 0);
  const auto opened = Checkpointer::open(alone(disk / "ck"), tensors());
  ASSERT_TRUE(opened) << opened.error().message();
  const auto writable = memory.writable();
  ASSERT_TRUE((*opened)->restore(writable));
  memory.fill(1);
  auto captured = (*opened)->checkpoint(1, memory.views());
  ASSERT_TRUE(captured);
  ASSERT_TRUE((*opened)->wait(captured->version, CheckpointLevel::local, kLong));
  const std::string filler = disk / "filler";
  { std::ofstream(filler) << std::string(2'700'000, 'x'); }
  memory.fill(2);
  captured = (*opened)->checkpoint(2, memory.views());
  ASSERT_TRUE(captured);
  EXPECT_TRUE(is_refused((*opened)->wait(captured->version, CheckpointLevel::local, kLong), Code::out_of_space));
  std::filesystem::remove(filler);
  memory.fill(3);
  captured = (*opened)->checkpoint(3, memory.views());
  ASSERT_TRUE(captured);
  EXPECT_TRUE((*opened)->wait(captured->version, CheckpointLevel::local, kLong));
  memory.fill(0);
  ASSERT_TRUE((*opened)->finish(kLong));
  const auto resting = levels::RestingCheckpoints::open({disk / "ck"}, nullptr, "net");
  ASSERT_TRUE(resting);
  VerifyReport report;
  ASSERT_TRUE(resting->verify(report));
  EXPECT_TRUE(report.corrupt.empty());
  const auto whole = resting->get({});
  ASSERT_TRUE(whole);
  EXPECT_EQ(whole->step, 3U);
}

TEST(Checkpointer, AFolderThatFailsAtTheEndKeepsNobodyFromLeaving) {
  const TemporaryFolder folder;
  test::FaultEnv env(system_env());
  Memory memory(1, 0);
  auto options = alone(folder.path());
  options.env = &env;
  const auto opened = Checkpointer::open(options, tensors());
  ASSERT_TRUE(opened);
  const auto writable = memory.writable();
  ASSERT_TRUE((*opened)->restore(writable));
  ASSERT_TRUE((*opened)->checkpoint(1, memory.views()));
  ASSERT_TRUE((*opened)->settle(kLong));
  env.fail_call(1, ENOSPC, true);
  EXPECT_TRUE((*opened)->finish(kLong));
  EXPECT_GT(env.calls(), 0U);
}

/// Each call that changes files fails in turn, once and from then on: the job goes on, and what it acknowledged is
/// there.
TEST(Checkpointer, WhateverCallFailsNothingAcknowledgedIsLost) {
  for (const bool from_then_on : {false, true}) {
    for (std::uint64_t nth = 1; nth < 60; nth += 2) {
      const TemporaryFolder folder;
      test::FaultEnv env(system_env());
      Memory memory(1, 0);
      int acknowledged = 0;
      {
        auto options = alone(folder.path());
        options.env = &env;
        options.patience = std::chrono::milliseconds(300);
        const auto opened = Checkpointer::open(options, tensors());
        ASSERT_TRUE(opened);
        const auto writable = memory.writable();
        ASSERT_TRUE((*opened)->restore(writable));
        // One thread at a time changes files from here on: the next version waits for this one's end.
        env.fail_call(nth, EIO, from_then_on);
        for (int step = 1; step <= 4; ++step) {
          memory.fill(step);
          const auto captured = (*opened)->checkpoint(static_cast<std::uint64_t>(step), memory.views());
          if (!captured) continue;
          if ((*opened)->wait(captured->version, CheckpointLevel::local, kLong)) acknowledged = step;
        }
      }
      env.fail_call(0, 0, false);
      const auto opened = Checkpointer::open(alone(folder.path()), tensors());
      ASSERT_TRUE(opened);
      const auto writable = memory.writable();
      const auto restored = (*opened)->restore(writable);
      ASSERT_TRUE(restored) << restored.error().message();
      const int step = *restored ? static_cast<int>((*restored)->step) : 0;
      EXPECT_GE(step, acknowledged) << "call " << nth;
      EXPECT_TRUE(!*restored || memory.is_of(step)) << "call " << nth;
    }
  }
}

}  // namespace
}  // namespace freshet
