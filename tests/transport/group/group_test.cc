// SPDX-License-Identifier: Apache-2.0
#include "transport/group/group.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <latch>
#include <memory>
#include <thread>
#include <vector>

#include "core/base/format.h"
#include "tests/support/free_port.h"
#include "tests/support/other_user.h"

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

/// Another user's rank 0 of two, which takes all users of the host.
test::OtherUsersServer::Served meet_as_neighbour(const std::string& meet) {
  struct Waiting {
    Result<std::unique_ptr<Group>> group = fail(Code::unavailable, "not met");
    std::thread thread;
  };
  auto waiting = std::make_shared<Waiting>();
  GroupOptions options{.ranks = 2, .meet = meet};
  options.security.open_loopback = true;
  options.times.silence = kAMinute;
  waiting->thread = std::thread([waiting, options] { waiting->group = Group::open(options, {}); });
  waiting->thread.detach();
  return {.server = waiting, .address = meet};
}

/// Another user who listens first where rank 0 will is not believed, unless that was asked for.
TEST(Group, ANeighbourIsNoRank0) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to be another user";
  for (const bool is_open : {false, true}) {
    const std::string meet = format("tcp://127.0.0.1:{}", free_port());
    const test::OtherUsersServer other([&] { return meet_as_neighbour(meet); });
    ASSERT_EQ(other.address(), meet);
    GroupOptions options{.rank = 1, .ranks = 2, .meet = meet};
    options.security.open_loopback = is_open;
    const auto met = Group::open(options, {});
    EXPECT_EQ(met.has_value(), is_open) << (met ? "" : met.error().message());
    if (met) continue;
    EXPECT_EQ(met.error().code(), Code::failed_precondition);
    EXPECT_NE(met.error().message().find("user 65534"), std::string::npos) << met.error().message();
  }
}

/// A claim that only one of two ranks makes tells them apart, whichever it is.
TEST(Group, AClaimOfOneRankAloneIsADifference) {
  const Time now{};
  const Claims alike = {{"model", "net"}};
  const Claims more = {{"model", "net"}, {"job", "7"}};
  for (const bool hub_has_more : {true, false}) {
    GroupMachine hub({.rank = 0, .ranks = 2, .claims = hub_has_more ? more : alike, .peer = {}}, {}, now);
    Message hello{.kind = Kind::hello, .from = 1, .claims = hub_has_more ? alike : more, .peers = {Peer{}}};
    const GroupMachine::Outcome outcome = hub.on_message(hello, now);
    EXPECT_FALSE(outcome.met);
    ASSERT_TRUE(outcome.ended);
    EXPECT_NE(outcome.ended->message().find("job"), std::string::npos) << outcome.ended->message();
  }
}

/// A rank has a way to each other one, of several sockets.
TEST(Group, ARankAsksManyOthers) {
  constexpr Rank kRanks = 40;
  const std::string meet = format("tcp://127.0.0.1:{}", free_port());
  std::vector<Result<std::unique_ptr<Group>>> groups;
  for (Rank rank = 0; rank < kRanks; ++rank) groups.emplace_back(fail(Code::unavailable, "not met"));
  {
    std::vector<std::jthread> opens;
    for (Rank rank = 0; rank < kRanks; ++rank) {
      opens.emplace_back([&, rank] {
        GroupOptions options{.rank = rank, .ranks = kRanks, .meet = meet};
        options.times.silence = kAMinute;
        groups[rank] = Group::open(options, {.on_ask = [rank](Rank, Bytes) -> Result<std::vector<std::byte>> {
                                     return std::vector<std::byte>(rank + 1);
                                   }});
      });
    }
  }
  for (const auto& group : groups) ASSERT_TRUE(group) << group.error().message();
  std::vector<Group::Question> asked;
  for (Rank rank = 1; rank < kRanks; ++rank) asked.push_back((*groups[0])->ask(rank, {}));
  for (Rank rank = 1; rank < kRanks; ++rank) {
    const Result<Answer> answer = asked[rank - 1].wait(kAMinute);
    ASSERT_TRUE(answer) << "rank " << rank << ": " << answer.error().message();
    EXPECT_EQ(answer->bytes().size(), rank + 1);
  }
}

}  // namespace
}  // namespace freshet::group
