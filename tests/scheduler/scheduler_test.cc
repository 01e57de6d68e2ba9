// SPDX-License-Identifier: Apache-2.0
#include "scheduler/scheduler.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <ctime>
#include <thread>
#include <vector>

#include "scheduler/online/loss_record.h"
#include "tests/support/eventually.h"

namespace freshet {
namespace {

using std::chrono::milliseconds;

TEST(Scheduler, TakesItsTimesFromTheClock) {
  ManualClock clock;
  auto scheduler = *Scheduler::make({.schedule = "every:5"}, clock);
  scheduler->published(milliseconds(100));
  int due = 0;
  for (std::uint64_t step = 1; step <= 50; ++step) {
    clock.advance(milliseconds(20));
    if (!scheduler->observe({.step = step, .loss = 1})) continue;
    ++due;
    clock.advance(milliseconds(7));
    scheduler->published(milliseconds(7));
  }
  EXPECT_EQ(due, 10);
  EXPECT_EQ(scheduler->last_decision().step_time, milliseconds(20));
  EXPECT_EQ(scheduler->last_decision().stall_time, milliseconds(7));
}

TEST(Scheduler, MayBeCalledFromAnyThread) {
  auto scheduler = *Scheduler::make({.schedule = "online"});
  scheduler->published(milliseconds(1));
  std::atomic<bool> done = false;
  std::vector<std::thread> others;
  for (int i = 0; i < 3; ++i) {
    others.emplace_back([&scheduler, &done] {
      do {
        scheduler->delivered(milliseconds(2));
        scheduler->persisted(milliseconds(0));
        EXPECT_EQ(scheduler->last_decision().schedule, "online");
      } while (!done);
    });
  }
  std::vector<std::thread> loops;
  for (int i = 0; i < 2; ++i) {
    loops.emplace_back([&scheduler] {
      for (std::uint64_t step = 1; step <= 2000; ++step) {
        if (scheduler->observe({.step = step, .loss = 1.0 / static_cast<double>(step)})) {
          scheduler->published(std::chrono::microseconds(3));
        }
      }
    });
  }
  for (std::thread& loop : loops) loop.join();
  done = true;
  for (std::thread& other : others) other.join();
  EXPECT_EQ(scheduler->last_decision().step, 2000U);
}

double own_processor_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

/// The loop asks on; the scheduler's own thread plans, and ends with the scheduler.
TEST(Scheduler, PlansOnAThreadOfItsOwn) {
  for (const bool is_waited_for : {true, false}) {
    ManualClock clock;
    auto scheduler = *Scheduler::make({.schedule = "optimal", .warmup_steps = 100, .limits = {.steps = 20'000}}, clock);
    scheduler->published(milliseconds(1));
    std::uint64_t step = 0;
    const auto observe = [&] {
      ++step;
      clock.advance(milliseconds(10));
      const bool due = scheduler->observe({.step = step, .loss = 1.0 / static_cast<double>(step) + 0.1});
      if (due) scheduler->published(milliseconds(5));
      return due;
    };
    while (step < 100) observe();
    const std::clock_t before = std::clock();
    const double own_before = own_processor_seconds();
    observe();
    const double own = own_processor_seconds() - own_before;
    if (!is_waited_for) continue;
    ASSERT_TRUE(came_true([&] { return scheduler->last_decision().explanation.note.empty(); }));
    // Processor time, so other programs on the machine do not count.
    const double all = static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
    EXPECT_LT(own, all / 2) << "the call that asked for the plan made it";
    bool any = false;
    while (step < 5000) any = observe() || any;
    EXPECT_TRUE(any);
    EXPECT_FALSE(scheduler->last_decision().explanation.curve.empty());
  }
}

/// The child's thread gets the name that the parent's planning thread had.
TEST(Scheduler, AChildEndsItWithoutTouchingTheChildsThreads) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer lets no child of a process with threads start one";
#endif
  ManualClock clock;
  auto scheduler = *Scheduler::make({.schedule = "optimal", .warmup_steps = 100, .limits = {.steps = 2000}}, clock);
  scheduler->published(milliseconds(1));
  for (std::uint64_t step = 1; step <= 101; ++step) {
    clock.advance(milliseconds(10));
    const bool due = scheduler->observe({.step = step, .loss = 1.0 / static_cast<double>(step) + 0.1});
    if (due) scheduler->published(milliseconds(5));
  }
  ASSERT_TRUE(came_true([&] { return scheduler->last_decision().explanation.note.empty(); }));
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(30);  // One that waits for ever ends too.
    std::atomic<bool> go = false;
    std::thread own([&go] { go.wait(false); });
    scheduler.reset();
    go = true;
    go.notify_all();
    own.join();
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "wait status " << status;
}

TEST(LossRecord, AMillionRowsNeedNoMoreMemoryThanAThousand) {
  LossRecord record;
  for (int row = 1; row <= 1'000'000; ++row) record.push(row <= 500'000 ? 2.0 : 1.0);
  EXPECT_EQ(record.rows(), 1'000'000);
  const auto blocks = record.blocks();
  EXPECT_LE(blocks.size(), LossRecord::kBlocksMax);
  EXPECT_GT(blocks.size(), LossRecord::kBlocksMax / 2 - 1);
  double rows = 0, sum = 0;
  for (const LossRecord::Block& block : blocks) {
    rows += block.rows;
    sum += block.rows * block.loss;
  }
  EXPECT_EQ(rows, 1'000'000);
  EXPECT_NEAR(sum, 1'500'000, 1e-3);
  EXPECT_FALSE(record.local(1, {.reach = 100})) << "its rows are no longer known one by one";
  ASSERT_TRUE(record.local(1'000'000, {.reach = 100}));
  EXPECT_NEAR(record.local(1'000'000, {.reach = 100})->level, 1, 1e-12);
}

TEST(LossRecord, ALocalLineIsExactOnALine) {
  LossRecord record;
  for (int row = 1; row <= 300; ++row) record.push(row % 10 == 0 ? std::numeric_limits<double>::quiet_NaN() : 5 - row);
  for (const std::int64_t row : {1, 150, 300}) {
    const auto local = record.local(row, {.reach = 20});
    ASSERT_TRUE(local);
    EXPECT_NEAR(local->level, 5 - static_cast<double>(row), 1e-9);
    EXPECT_NEAR(local->slope, -1, 1e-9);
  }
}

}  // namespace
}  // namespace freshet
