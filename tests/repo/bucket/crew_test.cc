// SPDX-License-Identifier: Apache-2.0
#include "repo/bucket/crew.h"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <optional>
#include <stop_token>

#include "core/base/interruption.h"
#include "tests/support/eventually.h"

namespace freshet::bucket {
namespace {

/// Work that ends when it is interrupted.
Status until_interrupted() {
  came_true([] { return Interruption::is_wanted(); });
  return Interruption::check();
}

TEST(Crew, WorksOnSeveralPiecesAndOnNoMore) {
  Crew crew(3);
  std::latch all(3);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(crew.add([&]() -> Status {
      all.arrive_and_wait();
      return {};
    }));
  }
  ASSERT_TRUE(crew.finish());
  std::atomic<int> now{0};
  std::atomic<int> done{0};
  std::atomic<bool> too_many{false};
  for (int i = 0; i < 200; ++i) {
    ASSERT_TRUE(crew.add([&]() -> Status {
      if (++now > 3) too_many = true;
      --now;
      ++done;
      return {};
    }));
  }
  ASSERT_TRUE(crew.finish());
  EXPECT_EQ(done, 200);
  EXPECT_FALSE(too_many);
}

TEST(Crew, TheFirstErrorEndsTheRest) {
  Crew crew(2);
  std::latch begun(1);
  ASSERT_TRUE(crew.add([&] {
    begun.count_down();
    return until_interrupted();
  }));
  begun.wait();
  ASSERT_TRUE(crew.add([]() -> Status { return fail(Code::corrupt, "why"); }));
  const Status ended = crew.finish();
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().code(), Code::corrupt) << "what it interrupted says nothing";
  bool done = false;
  const Status later = crew.add([&]() -> Status {
    done = true;
    return {};
  });
  EXPECT_EQ(later.error().message(), "why");
  EXPECT_FALSE(done);
}

TEST(Crew, ItsOwnersInterruptionEndsIt) {
  Crew crew(1);
  ASSERT_TRUE(crew.add(until_interrupted));
  std::stop_source stop;
  stop.request_stop();
  const StopInterrupts interrupts(stop.get_token());
  EXPECT_EQ(crew.finish().error().code(), Code::cancelled);
}

TEST(Crew, ItsEndInterruptsWhatIsUnderWay) {
  std::optional<Crew> crew(std::in_place, 1);
  std::latch begun(1);
  Status ended;
  ASSERT_TRUE(crew->add([&] {
    begun.count_down();
    ended = until_interrupted();
    return ended;
  }));
  begun.wait();
  crew.reset();
  EXPECT_EQ(ended.error().code(), Code::cancelled);
}

}  // namespace
}  // namespace freshet::bucket
