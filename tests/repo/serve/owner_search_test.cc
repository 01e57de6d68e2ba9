// SPDX-License-Identifier: Apache-2.0
#include "repo/serve/client/owner_search.h"

#include <gtest/gtest.h>

namespace freshet::rpc {
namespace {

using std::chrono::milliseconds;

using Search = OwnerSearch;

const Error kSilent(Code::unavailable, "nobody is there");

ServedOwner at(const std::string& address) { return {.address = address, .public_key = {}}; }

/// The server that a step asks; "source", "wait", or the error's message.
std::string told(const Search::Step& step) {
  if (const auto* const server = std::get_if<Search::AskServer>(&step)) return server->server.address;
  if (std::holds_alternative<Search::AskSource>(step)) return "source";
  if (std::holds_alternative<Search::Wait>(step)) return "wait";
  return std::get<Error>(step).message();
}

TEST(OwnerSearch, ARepositoryThatCannotMoveHasOneServerAndOneTry) {
  const Time start{};
  Search search({.first = "a", .others = {"b"}, .has_source = true}, {}, start);
  const Search::Step step = search.next(start);
  ASSERT_EQ(told(step), "a");
  EXPECT_EQ(std::get<Search::AskServer>(step).deadline, start + std::chrono::seconds(5));
  search.on_error(kSilent);
  EXPECT_EQ(told(search.next(start)), kSilent.message());
  EXPECT_EQ(told(search.next(start + std::chrono::seconds(1))), kSilent.message()) << "it is over";
}

TEST(OwnerSearch, ARoundAsksEachServerOnceThenTheSourceThenWhomItTells) {
  Time now{};
  Search search({.first = "a", .others = {"b", "a"}, .has_source = true}, {.moves = true, .owner = at("o")}, now);
  const Search::Step first = search.next(now);
  ASSERT_EQ(told(first), "o") << "the last owner";
  EXPECT_EQ(std::get<Search::AskServer>(first).deadline, now + std::chrono::seconds(2)) << "one of several";
  search.on_error(kSilent);
  ASSERT_EQ(told(search.next(now)), "a");
  search.on_standby(at("p"));
  ASSERT_EQ(told(search.next(now)), "b");
  search.on_standby(at("o"));
  ASSERT_EQ(told(search.next(now)), "p");
  search.on_error(kSilent);
  ASSERT_EQ(told(search.next(now)), "source");
  search.on_source(at("q"));
  ASSERT_EQ(told(search.next(now)), "q");
  search.on_error(kSilent);
  const Search::Step pause = search.next(now);
  ASSERT_EQ(told(pause), "wait");
  EXPECT_EQ(std::get<Search::Wait>(pause).until, now + milliseconds(200));
  now += milliseconds(200);
  EXPECT_EQ(told(search.next(now)), "o") << "the next round";
}

TEST(OwnerSearch, TheSourceIsAskedOnceASecondAndHasADeadline) {
  Time now{};
  Search search({.first = "a", .has_source = true}, {.moves = true}, now);
  int asked = 0;
  while (now < Time{} + milliseconds(3100)) {
    const Search::Step step = search.next(now);
    if (const auto* const source = std::get_if<Search::AskSource>(&step)) {
      EXPECT_EQ(source->deadline, now + std::chrono::seconds(3));
      EXPECT_EQ(now, Time{} + asked * std::chrono::seconds(1));
      ++asked;
      search.on_source({});
    } else if (const auto* const pause = std::get_if<Search::Wait>(&step)) {
      now = pause->until;
    } else {
      ASSERT_EQ(told(step), "a");
      search.on_error(kSilent);
    }
  }
  EXPECT_EQ(asked, 4);
}

TEST(OwnerSearch, ADoubtedServerComesLast) {
  Time now{};
  Search search({.first = "old", .others = {"b"}, .has_source = true},
                {.moves = true, .owner = at("old"), .doubted = "old"}, now);
  ASSERT_EQ(told(search.next(now)), "b");
  search.on_standby(at("old"));
  ASSERT_EQ(told(search.next(now)), "source");
  search.on_source(at("old"));
  ASSERT_EQ(told(search.next(now)), "old") << "nobody else owns it";
  search.on_error(kSilent);
  EXPECT_EQ(told(search.next(now)), "wait");
}

TEST(OwnerSearch, ATakeoverIsWaitedForAndTheLastErrorIsTold) {
  Time now{};
  Search search({.first = "a", .connect = std::chrono::seconds(1), .takeover = std::chrono::seconds(4)},
                {.moves = true}, now);
  for (;;) {
    const Search::Step step = search.next(now);
    if (const auto* const error = std::get_if<Error>(&step)) {
      EXPECT_EQ(error->message(), kSilent.message());
      break;
    }
    if (const auto* const pause = std::get_if<Search::Wait>(&step)) {
      now = pause->until;
      continue;
    }
    ASSERT_EQ(told(step), "a");
    EXPECT_GT(std::get<Search::AskServer>(step).deadline, now);
    search.on_error(kSilent);
  }
  EXPECT_EQ(now, Time{} + milliseconds(3800)) << "a further round would have no time";
}

TEST(OwnerSearch, AnErrorThatNoOtherServerMendsEndsIt) {
  const Time now{};
  const Error refused(Code::failed_precondition, "it takes keys");
  Search search({.first = "a", .others = {"b"}}, {.moves = true}, now);
  ASSERT_EQ(told(search.next(now)), "a");
  search.on_error(refused);
  EXPECT_EQ(told(search.next(now)), refused.message());
}

TEST(OwnerSearch, StandbysThatNameEverNewOwnersEndTheRound) {
  const Time now{};
  Search search({.first = "0"}, {}, now);
  int asked = 0;
  for (; told(search.next(now)) != "wait"; ++asked) {
    ASSERT_LT(asked, 100);
    search.on_standby(at(std::to_string(asked + 1)));
  }
  EXPECT_EQ(asked, 32);
}

}  // namespace
}  // namespace freshet::rpc
