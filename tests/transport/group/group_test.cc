// SPDX-License-Identifier: Apache-2.0
#include "transport/group/group.h"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <thread>

#include "core/base/format.h"
#include "tests/support/free_port.h"

namespace freshet::group {
namespace {

constexpr auto kAMinute = std::chrono::minutes(1);

TEST(Group, AQuestionThatFindsNoRoomIsAnsweredAtOnce) {
  std::atomic<bool> is_answering = false;
  std::latch goes_on(1);
  GroupOptions options;
  options.ranks = 2;
  options.meet = format("tcp://127.0.0.1:{}", free_port());
  options.times.silence = kAMinute;
  GroupHandlers handlers;
  handlers.on_ask = [&](Rank, Bytes) -> Result<std::vector<std::byte>> {
    is_answering = true;
    is_answering.notify_all();
    goes_on.wait();
    return std::vector<std::byte>();
  };
  Result<std::unique_ptr<Group>> answers = fail(Code::unavailable, "not met");
  std::thread other([&] { answers = Group::open(options, handlers); });
  GroupOptions of_asker = options;
  of_asker.rank = 1;
  const Result<std::unique_ptr<Group>> asks = Group::open(of_asker, {});
  other.join();
  ASSERT_TRUE(answers) << answers.error().message();
  ASSERT_TRUE(asks) << asks.error().message();
  std::vector<Group::Question> asked;
  asked.reserve(kQuestionsMax + 2);
  asked.push_back((*asks)->ask(0, {}));
  is_answering.wait(false);
  while (asked.size() < kQuestionsMax + 2) asked.push_back((*asks)->ask(0, {}));
  const Result<Answer> refused = asked.back().wait(kAMinute);
  goes_on.count_down();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::unavailable) << refused.error().message();
  EXPECT_TRUE(asked.front().wait(kAMinute));
  EXPECT_TRUE(asked[kQuestionsMax].wait(kAMinute)) << "the last that found room";
}

}  // namespace
}  // namespace freshet::group
