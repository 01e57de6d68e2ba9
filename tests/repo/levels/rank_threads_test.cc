// SPDX-License-Identifier: Apache-2.0
/// Jobs whose ranks are threads of this process, over loopback: where a test has to look inside.

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <functional>
#include <latch>
#include <map>
#include <thread>

#include "core/base/format.h"
#include "core/base/interruption.h"
#include "core/base/mutex.h"
#include "repo/backend/backend.h"
#include "repo/levels/checkpointer.h"
#include "tests/fault/fault_backend.h"
#include "tests/repo/levels/support/held_memory.h"
#include "tests/repo/levels/support/job.h"
#include "tests/repo/levels/support/refusing_disk.h"
#include "tests/support/refused.h"
#include "tests/support/temporary_folder.h"

namespace freshet::threads {
namespace {

using test::HeldMemory;
using test::three_tensors;

constexpr auto kLong = std::chrono::seconds(60);

/// How each rank ended. `work` gets its options, which it may change, and its memory.
using Work = std::function<Status(Checkpointer::Options, std::uint32_t rank)>;
std::vector<Status> run_ranks(std::uint32_t ranks, const TemporaryFolder& folder, const Work& work) {
  std::vector<Status> ended(ranks);
  std::vector<std::thread> threads;
  const std::string meet = test::meeting_address();
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      Checkpointer::Options options = test::alone(folder / std::to_string(rank));
      options.rank = rank;
      options.ranks = ranks;
      options.meet = meet;
      options.host = format("h{}", rank);
      options.when_behind = levels::WhenBehind::wait;
      options.lost_after = std::chrono::seconds(20);
      ended[rank] = work(std::move(options), rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return ended;
}

void expect_all_well(const std::vector<Status>& ended) {
  for (const Status& status : ended) EXPECT_TRUE(status) << status.error().message();
}

Status wrong(const std::string& what) { return fail(Code::corrupt, what); }

TEST(CheckpointerRanks, AllRollBackToWhatTheirMemoriesHave) {
  const TemporaryFolder folder;
  expect_all_well(run_ranks(3, folder, [](Checkpointer::Options options, std::uint32_t rank) -> Status {
    FRESHET_ASSIGN(const auto checkpointer, Checkpointer::open(std::move(options), three_tensors()));
    HeldMemory memory(3, rank);
    const auto writable = memory.writable();
    FRESHET_ASSIGN([[maybe_unused]] const auto nothing, checkpointer->restore(writable));
    memory.fill(3);
    FRESHET_ASSIGN(const auto captured, checkpointer->checkpoint(3, memory.views()));
    FRESHET_TRY(checkpointer->wait(captured.version, CheckpointLevel::local, kLong));
    memory.fill(9);
    FRESHET_ASSIGN(const auto restored, checkpointer->restore(writable));
    if (!restored || restored->from != std::set{CheckpointLevel::memory}) return wrong("not from memory");
    if (!memory.is_of(3)) return wrong("not what was captured");
    FRESHET_ASSIGN(const auto next, checkpointer->checkpoint(4, memory.views()));
    if (next.version <= captured.version) return wrong("a number was given twice");
    return checkpointer->finish(kLong);
  }));
}

TEST(CheckpointerRanks, WhatAnotherRankLeftOutIsNoLossAtTheEnd) {
  const TemporaryFolder folder;
  expect_all_well(run_ranks(2, folder, [](Checkpointer::Options options, std::uint32_t rank) -> Status {
    FRESHET_ASSIGN(const auto checkpointer, Checkpointer::open(std::move(options), three_tensors()));
    HeldMemory memory(2, rank);
    const auto writable = memory.writable();
    FRESHET_ASSIGN([[maybe_unused]] const auto nothing, checkpointer->restore(writable));
    memory.fill(1);
    FRESHET_ASSIGN([[maybe_unused]] const auto stored, checkpointer->checkpoint(1, memory.views()));
    const auto last = rank == 0 ? checkpointer->checkpoint(2, memory.views()) : checkpointer->checkpoint(2, {});
    if (last.has_value() != (rank == 0)) return wrong("rank 1 alone is to leave it out");
    FRESHET_TRY(checkpointer->finish(kLong));
    return checkpointer->check_stored();
  }));
}

TEST(CheckpointerRanks, TheLayoutOfATensorMayChangeBetweenLives) {
  const TemporaryFolder folder;
  for (int life = 0; life < 4; ++life) {
    const std::vector<Layout> layouts = {
        {}, {.cut = Cut::split}, {.cut = Cut::on, .argument = 1}, {.cut = Cut::from, .argument = 1}};
    auto tensors = three_tensors();
    tensors[1].layout = layouts[static_cast<std::size_t>(life)];
    expect_all_well(run_ranks(3, folder, [&](Checkpointer::Options options, std::uint32_t rank) -> Status {
      FRESHET_ASSIGN(const auto checkpointer, Checkpointer::open(std::move(options), tensors));
      HeldMemory memory(3, rank, tensors);
      const auto writable = memory.writable();
      FRESHET_ASSIGN(const auto restored, checkpointer->restore(writable));
      if (restored.has_value() != (life > 0)) return wrong("it began otherwise than it should");
      if (life > 0 && !memory.is_of(life)) return wrong("not what was captured");
      memory.fill(life + 1);
      FRESHET_ASSIGN([[maybe_unused]] const auto captured,
                     checkpointer->checkpoint(static_cast<std::uint64_t>(life) + 1, memory.views()));
      return checkpointer->finish(kLong);
    }));
  }
}

TEST(CheckpointerRanks, AnInterruptedOpenLeavesFolderAndAddressFree) {
  const TemporaryFolder folder;
  std::atomic<bool> is_interrupted = false;
  expect_all_well(run_ranks(2, folder, [&](Checkpointer::Options options, std::uint32_t rank) -> Status {
    if (rank == 0) {
      const Interruption interruption([] { return true; });
      const auto alone = Checkpointer::open(options, three_tensors());
      is_interrupted = true;
      is_interrupted.notify_one();
      if (alone || alone.error().code() != Code::cancelled) return wrong("it was not interrupted");
    }
    is_interrupted.wait(false);
    FRESHET_ASSIGN(const auto met, Checkpointer::open(options, three_tensors()));
    {
      const Interruption interruption([] { return true; });
      const auto second = Checkpointer::open(options, three_tensors());  // The folder is the first one's.
      if (second || second.error().code() != Code::cancelled) return wrong("the wait for the folder went on");
    }
    HeldMemory memory(2, rank);
    const auto writable = memory.writable();
    FRESHET_ASSIGN([[maybe_unused]] const auto nothing, met->restore(writable));
    return met->finish(kLong);
  }));
}

/// Ranks that were started unlike each other do not meet, and each hears what differs.
TEST(CheckpointerRanks, WhatDiffersIsNamedAtEachRank) {
  struct Fault {
    const char* named;
    std::function<void(Checkpointer::Options&, std::vector<LaidTensor>&)> make;
  };
  const std::vector<Fault> faults = {
      {"ranks", [](auto& options, auto&) { options.ranks = 3; }},
      {"tensors", [](auto&, auto& tensors) { tensors[0].spec.shape = {49'999}; }},
      {"tensors", [](auto&, auto& tensors) { tensors[1].layout = {}; }},
      {"when-behind", [](auto& options, auto&) { options.when_behind = levels::WhenBehind::skip; }}};
  for (const Fault& fault : faults) {
    const TemporaryFolder folder;
    const auto ended = run_ranks(2, folder, [&](Checkpointer::Options options, std::uint32_t rank) -> Status {
      auto tensors = three_tensors();
      if (rank == 1) fault.make(options, tensors);
      FRESHET_ASSIGN([[maybe_unused]] const auto opened, Checkpointer::open(std::move(options), tensors));
      return {};
    });
    for (const Status& status : ended) {
      ASSERT_TRUE(is_refused(status, Code::invalid_argument, fault.named));
    }
  }
}

TEST(CheckpointerRanks, AHundredThousandTensorsComeBack) {
  const TemporaryFolder folder;
  std::vector<LaidTensor> tensors;
  for (int i = 0; i < 100'000; ++i) {
    tensors.push_back({.spec = {.name = format("layer{}/w", i), .dtype = DType::u8, .shape = {3}}, .layout = {}});
  }
  for (int life = 0; life < 2; ++life) {
    expect_all_well(run_ranks(2, folder, [&](Checkpointer::Options options, std::uint32_t rank) -> Status {
      FRESHET_ASSIGN(const auto checkpointer, Checkpointer::open(std::move(options), tensors));
      HeldMemory memory(2, rank, tensors);
      const auto writable = memory.writable();
      FRESHET_ASSIGN(const auto restored, checkpointer->restore(writable));
      if (restored.has_value() != (life == 1)) return wrong("it began otherwise than it should");
      if (restored && !memory.is_of(7)) return wrong("not what was captured");
      memory.fill(7);
      FRESHET_ASSIGN([[maybe_unused]] const auto captured,
                     checkpointer->checkpoint(static_cast<std::uint64_t>(life) + 1, memory.views()));
      return checkpointer->finish(kLong);
    }));
  }
}

/// Where any rank can open the repository, each reads it by itself; else rank 0 alone has it.
TEST(CheckpointerRanks, EachRankRestoresFromARepositoryThatItCanOpen) {
  for (const bool is_shared : {true, false}) {
    const auto repository = std::shared_ptr<Repository>(*Repository::open(make_memory_backend(), {}));
    std::atomic<int> opened_elsewhere = 0;
    for (int life = 0; life < 2; ++life) {
      const TemporaryFolder folder;  // Its hosts are lost between the lives.
      expect_all_well(run_ranks(3, folder, [&](Checkpointer::Options options, std::uint32_t rank) -> Status {
        options.external_is_shared = is_shared;
        options.external = [&, rank]() -> Result<std::shared_ptr<Repository>> {
          if (rank != 0) ++opened_elsewhere;
          return repository;
        };
        FRESHET_ASSIGN(const auto checkpointer, Checkpointer::open(std::move(options), three_tensors()));
        HeldMemory memory(3, rank);
        const auto writable = memory.writable();
        FRESHET_ASSIGN(const auto restored, checkpointer->restore(writable));
        if (life == 1) {
          if (!restored || restored->from != std::set{CheckpointLevel::external}) return wrong("not from there");
          if (!memory.is_of(5)) return wrong("not what was captured");
          return checkpointer->finish(kLong);
        }
        memory.fill(5);
        FRESHET_ASSIGN([[maybe_unused]] const auto captured, checkpointer->checkpoint(1, memory.views()));
        return checkpointer->finish(kLong);
      }));
    }
    EXPECT_EQ(opened_elsewhere, is_shared ? 4 : 0) << "to bring what they store, and to restore";
  }
}

/// A rank that the repository does not admit hands its bytes to rank 0.
TEST(CheckpointerRanks, WhatARankMayNotBringRankZeroDoes) {
  const auto repository = std::shared_ptr<Repository>(*Repository::open(make_memory_backend(), {}));
  for (int life = 0; life < 2; ++life) {
    const TemporaryFolder folder;
    expect_all_well(run_ranks(3, folder, [&](Checkpointer::Options options, std::uint32_t rank) -> Status {
      options.external_is_shared = true;
      options.external = [&, rank]() -> Result<std::shared_ptr<Repository>> {
        if (rank == 2) return fail(Code::failed_precondition, "this key may not write");
        return repository;
      };
      FRESHET_ASSIGN(const auto checkpointer, Checkpointer::open(std::move(options), three_tensors()));
      HeldMemory memory(3, rank);
      const auto writable = memory.writable();
      FRESHET_ASSIGN(const auto restored, checkpointer->restore(writable));
      if (restored.has_value() != (life == 1)) return wrong("it began otherwise than it should");
      if (life == 1 && !memory.is_of(6)) return wrong("not what was captured");
      for (int step = 5; step <= 6 && life == 0; ++step) {
        memory.fill(step);
        FRESHET_ASSIGN(const auto captured, checkpointer->checkpoint(static_cast<std::uint64_t>(step), memory.views()));
        FRESHET_TRY(checkpointer->wait(captured.version, CheckpointLevel::external, kLong));
      }
      return checkpointer->finish(kLong);
    }));
  }
  EXPECT_EQ(repository->versions("net")->size(), 2u);
}

TEST(CheckpointerRanks, ARepositoryThatIsSlowToOpenKeepsNoRankFromMeeting) {
  const TemporaryFolder folder;
  const auto repository = std::shared_ptr<Repository>(*Repository::open(make_memory_backend(), {}));
  std::latch others_met(2);
  expect_all_well(run_ranks(3, folder, [&](Checkpointer::Options options, std::uint32_t rank) -> Status {
    options.external = [&]() -> Result<std::shared_ptr<Repository>> {
      others_met.wait();
      return repository;
    };
    auto opened = Checkpointer::open(std::move(options), three_tensors());
    if (rank != 0) others_met.count_down();
    FRESHET_ASSIGN(const auto checkpointer, std::move(opened));
    HeldMemory memory(3, rank);
    const auto writable = memory.writable();
    FRESHET_ASSIGN([[maybe_unused]] const auto nothing, checkpointer->restore(writable));
    memory.fill(1);
    FRESHET_ASSIGN(const auto captured, checkpointer->checkpoint(1, memory.views()));
    FRESHET_TRY(checkpointer->wait(captured.version, CheckpointLevel::external, kLong));
    return checkpointer->finish(kLong);
  }));
}

TEST(CheckpointerRanks, ARepositoryThatDoesNotOpenEndsTheWaitForTheOthers) {
  const TemporaryFolder folder;
  Checkpointer::Options options = test::alone(folder.path());
  options.ranks = 2;
  options.meet = test::meeting_address();
  options.patience = std::chrono::hours(24);
  options.external = []() -> Result<std::shared_ptr<Repository>> { return fail(Code::not_found, "there is no store"); };
  EXPECT_TRUE(is_refused(Checkpointer::open(std::move(options), three_tensors()), Code::not_found));
}

/// Of the calling thread. `io`: negative where the kernel does not tell it.
struct Priority {
  static Priority of_this_thread() {
    constexpr int kThisThread = 1;
    return {.nice = ::getpriority(PRIO_PROCESS, 0), .io = ::syscall(SYS_ioprio_get, kThisThread, 0)};
  }
  bool is_best_effort_lowest() const { return io == (2 << 13 | 7); }
  int nice = 0;
  long io = 0;
};

TEST(CheckpointerRanks, OnlyTheThreadsThatSendHaveLowPriority) {
  const Priority own = Priority::of_this_thread();
  constexpr int kIdle = 3;
  if (own.io >> 13 == kIdle) GTEST_SKIP() << "this test runs at the lowest priority of all";
  const TemporaryFolder folder;
  const auto repository = std::shared_ptr<Repository>(*Repository::open(make_memory_backend(), {}));
  Mutex mutex;
  std::map<std::string, Priority, std::less<>> found;
  expect_all_well(run_ranks(2, folder, [&](Checkpointer::Options options, std::uint32_t rank) -> Status {
    options.group = *levels::parse_group_scheme("partner");
    options.external = [&]() -> Result<std::shared_ptr<Repository>> { return repository; };
    if (rank == 0) {
      options.at_point = [&](std::string_view point, std::uint64_t) {
        const MutexLock lock(mutex);
        found.emplace(point, Priority::of_this_thread());
      };
    }
    FRESHET_ASSIGN(const auto checkpointer, Checkpointer::open(std::move(options), three_tensors()));
    HeldMemory memory(2, rank);
    const auto writable = memory.writable();
    FRESHET_ASSIGN([[maybe_unused]] const auto nothing, checkpointer->restore(writable));
    FRESHET_ASSIGN([[maybe_unused]] const auto captured, checkpointer->checkpoint(1, memory.views()));
    return checkpointer->finish(kLong);
  }));
  for (const char* point : {"captured", "local_synced"}) {
    ASSERT_TRUE(found.contains(point));
    EXPECT_EQ(found[point].nice, own.nice) << point;
    EXPECT_EQ(found[point].io, own.io) << point;
  }
  for (const char* point : {"group_half", "group_synced", "external_synced"}) {
    ASSERT_TRUE(found.contains(point));
    EXPECT_EQ(found[point].nice, std::min(own.nice + 10, 19)) << point;
    EXPECT_TRUE(own.io < 0 || found[point].is_best_effort_lowest()) << point;
  }
}

TEST(CheckpointerRanks, ADiskThatTakesNoCopyFailsThatLevelOfThatVersion) {
  for (const int errno_value : {ENOSPC, EIO}) {
    const TemporaryFolder folder;
    test::RefusingDisk disk(".copy");
    expect_all_well(run_ranks(2, folder, [&](Checkpointer::Options options, std::uint32_t rank) -> Status {
      options.group = *levels::parse_group_scheme("partner");
      if (rank == 1) options.env = &disk;
      FRESHET_ASSIGN(const auto checkpointer, Checkpointer::open(std::move(options), three_tensors()));
      HeldMemory memory(2, rank);
      const auto writable = memory.writable();
      FRESHET_ASSIGN([[maybe_unused]] const auto nothing, checkpointer->restore(writable));
      for (int step = 1; step <= 3; ++step) {
        // Nothing of a version is under way while the disk changes.
        if (rank == 1) disk.errno_value = step == 2 ? errno_value : 0;
        memory.fill(step);
        FRESHET_ASSIGN(const auto captured, checkpointer->checkpoint(static_cast<std::uint64_t>(step), memory.views()));
        FRESHET_TRY(checkpointer->wait(captured.version, CheckpointLevel::local, kLong));
        const Status copied = checkpointer->wait(captured.version, CheckpointLevel::group, kLong);
        if (copied.has_value() != (step != 2)) return wrong(format("step {} at group", step));
        if (!copied && copied.error().message().find("rank 1") == std::string::npos) return copied;
      }
      return checkpointer->finish(kLong);
    }));
    std::filesystem::remove_all(folder / "0");  // Rank 1 has its copy of the third version.
    expect_all_well(run_ranks(2, folder, [&](Checkpointer::Options options, std::uint32_t rank) -> Status {
      options.group = *levels::parse_group_scheme("partner");
      FRESHET_ASSIGN(const auto checkpointer, Checkpointer::open(std::move(options), three_tensors()));
      HeldMemory memory(2, rank);
      const auto writable = memory.writable();
      FRESHET_ASSIGN(const auto restored, checkpointer->restore(writable));
      if (!restored || restored->step != 3 || !memory.is_of(3)) return wrong("not the third version");
      return checkpointer->finish(kLong);
    }));
  }
}

TEST(CheckpointerRanks, ARepositoryThatFailsCostsItsVersionThatLevel) {
  for (const Code code : {Code::out_of_space, Code::io_error}) {
    const TemporaryFolder folder;
    const auto backend = std::shared_ptr<Backend>(make_memory_backend());
    auto failing = std::make_unique<FaultBackend>(backend, FaultBackend::Plan{});
    FaultBackend& fault = *failing;
    const auto repository = std::shared_ptr<Repository>(*Repository::open(std::move(failing), {}));
    expect_all_well(run_ranks(1, folder, [&](Checkpointer::Options options, std::uint32_t) -> Status {
      options.external = [&]() -> Result<std::shared_ptr<Repository>> { return repository; };
      FRESHET_ASSIGN(const auto checkpointer, Checkpointer::open(std::move(options), three_tensors()));
      HeldMemory memory(1, 0);
      const auto writable = memory.writable();
      FRESHET_ASSIGN([[maybe_unused]] const auto nothing, checkpointer->restore(writable));
      for (int step = 1; step <= 3; ++step) {
        if (step == 2) fault.set_plan({.fault = FaultBackend::Fault::fail_once, .at = 1, .code = code});
        memory.fill(step);
        FRESHET_ASSIGN(const auto captured, checkpointer->checkpoint(static_cast<std::uint64_t>(step), memory.views()));
        const Status stored = checkpointer->wait(captured.version, CheckpointLevel::external, kLong);
        if (stored.has_value() != (step != 2)) return wrong(format("step {} at external", step));
        if (!stored && stored.error().code() != code) return stored;
      }
      return checkpointer->finish(kLong);
    }));
    const auto newest = repository->get({"net", 0});
    ASSERT_TRUE(newest);
    EXPECT_EQ(newest->manifest.step, 3U);
  }
}

/// Two jobs by accident at one address: a rank of each.
TEST(CheckpointerRanks, RanksOfTwoJobsDoNotMeet) {
  const TemporaryFolder folder;
  const std::vector<Status> ended =
      run_ranks(2, folder, [&](Checkpointer::Options options, std::uint32_t rank) -> Status {
        options.job = rank == 0 ? "morning" : "evening";
        FRESHET_ASSIGN([[maybe_unused]] const auto met, Checkpointer::open(std::move(options), three_tensors()));
        return {};
      });
  for (const Status& status : ended) {
    ASSERT_TRUE(is_refused(status, Code::invalid_argument));
    for (const char* const named : {"morning", "evening", "job"}) {
      EXPECT_NE(status.error().message().find(named), std::string::npos) << status.error().message();
    }
  }
}

}  // namespace
}  // namespace freshet::threads
