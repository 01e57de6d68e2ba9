// SPDX-License-Identifier: Apache-2.0
#include "repo/local/side_by_side.h"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "core/base/interruption.h"
#include "tests/support/eventually.h"

namespace freshet {
namespace {

TEST(SideBySide, DoesEveryPieceOnce) {
  for (const std::size_t threads : {1, 2, 7}) {
    std::vector<std::atomic<int>> done(100);
    const auto work = [&](std::size_t at) {
      ++done[at];
      return Status();
    };
    EXPECT_TRUE(run_side_by_side(done.size(), threads, work));
    for (const auto& count : done) EXPECT_EQ(count, 1);
  }
  EXPECT_TRUE(run_side_by_side(0, 4, [](std::size_t) { return Status(fail(Code::corrupt, "never")); }));
}

TEST(SideBySide, RunsAtTheSameTime) {
  std::latch all(3);
  const auto work = [&](std::size_t) {
    all.arrive_and_wait();
    return Status();
  };
  EXPECT_TRUE(run_side_by_side(3, 3, work));
}

TEST(SideBySide, AnswersTheFirstPieceThatFailed) {
  std::latch both(2);
  const auto work = [&](std::size_t at) -> Status {
    if (at < 2) both.arrive_and_wait();
    return fail(Code::corrupt, std::to_string(at));
  };
  EXPECT_EQ(run_side_by_side(50, 2, work).error().message(), "0");
}

TEST(SideBySide, BeginsNothingAfterAFailure) {
  std::size_t begun = 0;
  const auto work = [&](std::size_t at) -> Status {
    ++begun;
    return at == 3 ? Status(fail(Code::corrupt, "3")) : Status();
  };
  EXPECT_FALSE(run_side_by_side(50, 1, work));
  EXPECT_EQ(begun, 4u);
}

TEST(SideBySide, AnInterruptionEndsThePiecesOfOtherThreads) {
  std::stop_source stop;
  const StopInterrupts interrupts(stop.get_token());
  const auto caller = std::this_thread::get_id();
  std::latch both(2);
  bool was_interrupted = false;
  const auto work = [&](std::size_t) -> Status {
    both.arrive_and_wait();
    if (std::this_thread::get_id() == caller) {
      stop.request_stop();
    } else {
      was_interrupted = came_true([] { return Interruption::is_wanted(); });
    }
    return {};
  };
  EXPECT_EQ(run_side_by_side(2, 2, work).error().code(), Code::cancelled);
  EXPECT_TRUE(was_interrupted);
}

}  // namespace
}  // namespace freshet
