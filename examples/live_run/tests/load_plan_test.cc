// SPDX-License-Identifier: Apache-2.0
#include "examples/live_run/roles/load_plan.h"

#include <gtest/gtest.h>

#include <map>

namespace freshet::live {
namespace {

using std::chrono::milliseconds;

class LoadPlanTest : public testing::Test {
 protected:
  static constexpr Time kStart{std::chrono::seconds(100)};
  LoadPlan plan_{{.rate = 100,
                  .servers = 2,
                  .deadline = milliseconds(1000),
                  .hedge_after = milliseconds(100),
                  .probe_every = milliseconds(50)},
                 kStart};
  std::vector<LoadPlan::Send> sends(Time now) {
    std::vector<LoadPlan::Send> out;
    while (const auto send = plan_.next_send(now)) out.push_back(*send);
    return out;
  }
};

TEST_F(LoadPlanTest, ArrivalsKeepTheirTimesWithoutAnswers) {
  EXPECT_EQ(sends(kStart).size(), 1u);
  EXPECT_EQ(sends(kStart + milliseconds(9)).size(), 0u);
  EXPECT_EQ(sends(kStart + milliseconds(95)).size(), 9u);
}

TEST_F(LoadPlanTest, TakesTheServersInTurn) {
  const auto sent = sends(kStart + milliseconds(95));
  std::map<std::uint32_t, int> count;
  for (const auto& send : sent) ++count[send.server];
  EXPECT_EQ(count[0], 5);
  EXPECT_EQ(count[1], 5);
}

TEST_F(LoadPlanTest, AsksTheOtherServerWhenOneIsSilent) {
  const auto first = sends(kStart);
  ASSERT_EQ(first.size(), 1u);
  plan_.stop_arrivals();
  const auto again = sends(kStart + milliseconds(100));
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].id, first[0].id);
  EXPECT_NE(again[0].server, first[0].server);
  EXPECT_EQ(plan_.on_answer(again[0], kStart + milliseconds(120)), Duration(milliseconds(120)));
  EXPECT_EQ(plan_.on_answer(first[0], kStart + milliseconds(130)), std::nullopt);
  EXPECT_TRUE(plan_.idle());
  EXPECT_EQ(plan_.expire(kStart + milliseconds(5000)), 0u);
}

TEST_F(LoadPlanTest, AServerThatDiedIsAskedFirstOnlyToSeeWhetherItIsBack) {
  constexpr std::uint32_t kDead = 0;
  std::map<std::uint64_t, int> tries;
  std::uint64_t answered = 0;
  int first_to_dead = 0;
  for (int ms = 0; ms < 2000; ++ms) {
    const Time now = kStart + milliseconds(ms);
    for (const auto& send : sends(now)) {
      if (++tries[send.id] == 1 && send.server == kDead && ms > 300) ++first_to_dead;
      if (send.server != kDead && plan_.on_answer(send, now)) ++answered;
    }
    ASSERT_EQ(plan_.expire(now), 0u);
  }
  EXPECT_GE(answered, 180u);
  EXPECT_LE(first_to_dead, 1700 / 50 + 1);
  EXPECT_GE(first_to_dead, 10);
}

TEST_F(LoadPlanTest, CountsWhatNobodyAnsweredInTime) {
  EXPECT_EQ(sends(kStart + milliseconds(45)).size(), 5u);
  plan_.stop_arrivals();
  for (int ms = 46; ms < 1045; ++ms) {
    sends(kStart + milliseconds(ms));
    ASSERT_EQ(plan_.expire(kStart + milliseconds(ms)), 0u);
  }
  EXPECT_EQ(plan_.expire(kStart + milliseconds(1045)), 5u);
  EXPECT_TRUE(plan_.idle());
}

TEST_F(LoadPlanTest, HandsOverWhatCannotBeSentAndWaitsWhenNobodyIsThere) {
  const auto first = plan_.next_send(kStart);
  ASSERT_TRUE(first);
  plan_.stop_arrivals();
  plan_.on_unsendable(*first, kStart);
  const auto second = plan_.next_send(kStart);
  ASSERT_TRUE(second);
  EXPECT_NE(second->server, first->server);
  plan_.on_unsendable(*second, kStart);
  EXPECT_FALSE(plan_.next_send(kStart));
  const auto later = plan_.next_send(kStart + milliseconds(30));
  ASSERT_TRUE(later);
  EXPECT_TRUE(plan_.on_answer(*later, kStart + milliseconds(31)));
}

TEST_F(LoadPlanTest, NextEventIsNeverPastWhatIsDue) {
  EXPECT_EQ(plan_.next_event(kStart), kStart);
  sends(kStart);
  EXPECT_EQ(plan_.next_event(kStart), kStart + milliseconds(10));
}

}  // namespace
}  // namespace freshet::live
