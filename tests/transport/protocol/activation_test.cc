// SPDX-License-Identifier: Apache-2.0
/// What is current, as a publisher's machine decides it: by itself, with a directory that answers late, wrongly or
/// never, and with members that stage, fail, fall silent or come back.

#include "transport/protocol/publisher/activation.h"

#include <gmock/gmock.h>

#include <map>

#include "tests/transport/protocol/machine_fixture.h"

namespace freshet::protocol {
namespace {

using namespace freshet::protocol::test;
using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class ActivationTest : public ::testing::Test {
 protected:
  void open(Activation::Options options) {
    options.model = kModel;
    options.started = at(0);
    activation_.emplace(std::move(options));
  }
  void commit(VersionNumber number, std::int64_t ms = 0) {
    kept_.push_back(number);
    activation_->on_committed(number, at(ms));
    consider(ms);
  }
  /// Opens, and commits and records two versions.
  void open_with_two(Activation::Options options = {}) {
    open(std::move(options));
    for (const VersionNumber number : {1, 2}) {
      commit(number);
      swap();
    }
  }
  void consider(std::int64_t ms) { activation_->consider(members_, at(ms)); }
  /// A member that was heard at `ms`, and serves and has staged that.
  Activation::Follower& member(SessionId session, VersionNumber serving, VersionNumber staged, std::int64_t ms) {
    for (auto& one : members_) {
      if (one.session != session) continue;
      one.serving = serving;
      one.last_heard = at(ms);
      say(one, staged);
      return one;
    }
    members_.push_back(
        {.session = session, .hello = &hello_, .member = true, .last_heard = at(ms), .serving = serving});
    say(members_.back(), staged);
    return members_.back();
  }
  void say(Activation::Follower& one, VersionNumber staged, std::optional<Error> failed = std::nullopt) {
    words_[one.session] = {
        .session = one.session, .number = staged, .failed = std::move(failed), .turn = activation_->turn()};
    one.word = &words_[one.session];
  }
  void ask(Current expected, Current desired, std::int64_t ms = 0, bool as_group = false, std::uint64_t request = 1) {
    activation_->on_ask("asker",
                        {.model = kModel,
                         .request = request,
                         .expected = expected,
                         .desired = desired,
                         .as_group = as_group,
                         .within_ms = 1000},
                        kept_, at(ms));
    consider(ms);
  }
  /// The directory does what it is asked to.
  void swap(std::int64_t ms = 0) {
    const auto wanted = activation_->take_swap();
    ASSERT_TRUE(wanted);
    ASSERT_EQ(wanted->expected, record_);
    record_ = wanted->desired;
    activation_->on_swapped(record_, at(ms));
    consider(ms);
  }
  Activated answer() {
    auto answers = activation_->take_answers();
    EXPECT_THAT(answers, SizeIs(1));
    return answers.empty() ? Activated{} : answers[0].activated;
  }

  std::optional<Activation> activation_;
  std::vector<Activation::Follower> members_;
  std::map<SessionId, Staged> words_;
  std::vector<VersionNumber> kept_;
  Current record_;
  Hello hello_{.label = "server"};
};

TEST_F(ActivationTest, APublishIsCurrentAtOnceAndRecordedBehindNewestOnly) {
  open({});
  commit(1);
  EXPECT_EQ(activation_->current(), (Current{.version = 1}));
  const auto first = activation_->take_swap();
  ASSERT_TRUE(first);
  commit(2);
  commit(3);
  EXPECT_FALSE(activation_->take_swap()) << "one at a time";
  record_ = first->desired;
  activation_->on_swapped(record_, at(1));
  consider(1);
  swap();
  EXPECT_EQ(record_, (Current{.version = 3}));
  EXPECT_FALSE(activation_->take_swap());
}

TEST_F(ActivationTest, ARollbackIsToldOnlyWhenTheDirectoryHasIt) {
  open_with_two();
  ask({.version = 2}, {.version = 1, .hold = true});
  EXPECT_EQ(activation_->current(), (Current{.version = 2}));
  swap();
  EXPECT_EQ(activation_->current(), (Current{.epoch = 1, .version = 1, .hold = true}));
  EXPECT_FALSE(answer().refused);
  commit(3);
  EXPECT_EQ(activation_->current().version, 1u);
  EXPECT_THAT(activation_->wanted(), ::testing::ElementsAre(1));
}

TEST_F(ActivationTest, WhoeverAsksTwiceIsAnsweredTwiceAndServedOnce) {
  open_with_two();
  ask({.version = 2}, {.version = 1, .hold = true});
  ask({.version = 2}, {.version = 1, .hold = true});
  swap();
  answer();
  ask({.version = 2}, {.version = 1, .hold = true});
  EXPECT_EQ(answer().current.epoch, 1u);
  EXPECT_EQ(activation_->current().epoch, 1u);
}

TEST_F(ActivationTest, ADirectoryThatDoesNotAnswerLeavesItInDoubtUntilItDoes) {
  open_with_two();
  ask({.version = 2}, {.version = 1, .hold = true});
  const auto wanted = activation_->take_swap();
  ASSERT_TRUE(wanted);
  record_ = wanted->desired;  // It happened, but nobody hears of it.
  activation_->on_swapped(fail(Code::unavailable, "connection lost"), at(10));
  consider(10);
  consider(1000);
  const Activated doubt = answer();
  ASSERT_TRUE(doubt.refused);
  EXPECT_EQ(doubt.refused->code(), Code::unavailable);
  EXPECT_THAT(doubt.refused->message(), HasSubstr("connection lost"));
  EXPECT_EQ(activation_->current().epoch, 0u);
  ask({.version = 2}, {.version = 2, .hold = true}, 1000, false, 2);
  EXPECT_EQ(answer().refused->code(), Code::unavailable) << "nothing else begins meanwhile";
  const auto again = activation_->take_swap();
  ASSERT_TRUE(again);
  EXPECT_EQ(again->desired, wanted->desired);
  activation_->on_swapped(record_, at(1100));
  EXPECT_EQ(activation_->current(), (Current{.epoch = 1, .version = 1, .hold = true}));
}

TEST_F(ActivationTest, AnotherDecisionInTheDirectoryIsObeyed) {
  open_with_two();
  ask({.version = 2}, {.version = 1, .hold = true});
  ASSERT_TRUE(activation_->take_swap());
  activation_->on_swapped(Current{.epoch = 4, .version = 2, .hold = true}, at(1));
  consider(1);
  EXPECT_EQ(answer().refused->code(), Code::failed_precondition);
  EXPECT_EQ(activation_->current(), (Current{.epoch = 4, .version = 2, .hold = true}));
}

TEST_F(ActivationTest, ALostRecordIsWrittenAnew) {
  open({.current = {.epoch = 2, .version = 5}});
  commit(6);
  ASSERT_TRUE(activation_->take_swap());
  activation_->on_swapped(Current{}, at(1));
  consider(1000);
  swap(1000);
  EXPECT_EQ(record_, (Current{.epoch = 2, .version = 6}));
}

TEST_F(ActivationTest, SomebodyWhoIsAheadRaisesTheEpoch) {
  open({});
  commit(1);
  swap();
  activation_->on_epoch_seen(3, at(1));
  consider(1);
  EXPECT_EQ(activation_->current(), (Current{.version = 1})) << "the directory may know why";
  commit(2);
  swap(1);
  EXPECT_EQ(activation_->current(), (Current{.epoch = 3, .version = 2}));
  swap(1);
  EXPECT_EQ(record_, (Current{.epoch = 3, .version = 2}));
  activation_->on_epoch_seen(kEpochMax, at(2));
  consider(2);
  EXPECT_EQ(activation_->current().epoch, 3u) << "nobody can be there";
}

TEST_F(ActivationTest, WhyTheEpochIsLaterIsKnownInTheDirectory) {
  open_with_two();
  activation_->on_epoch_seen(1, at(1));
  consider(1);
  ASSERT_TRUE(activation_->take_swap());
  activation_->on_swapped(Current{.epoch = 1, .version = 1, .hold = true}, at(1));
  consider(1000);
  EXPECT_EQ(activation_->current(), (Current{.epoch = 1, .version = 1, .hold = true}));
  commit(3);
  EXPECT_FALSE(activation_->take_swap()) << "it is held";
}

TEST_F(ActivationTest, ACandidateBecomesCurrentWhenAllMembersHaveIt) {
  open({.group_commit = true});
  member(1, 0, 0, 0);
  member(2, 0, 0, 0);
  commit(1);
  EXPECT_EQ(activation_->candidate(), 1u);
  EXPECT_EQ(activation_->current().version, 0u);
  member(1, 0, 1, 10);
  consider(10);
  EXPECT_FALSE(activation_->take_swap()) << "one is missing";
  member(2, 0, 1, 20);
  consider(20);
  EXPECT_EQ(activation_->current().version, 0u) << "the directory was not asked yet";
  swap(20);
  EXPECT_EQ(activation_->current(), (Current{.epoch = 1, .version = 1}));
  EXPECT_EQ(activation_->candidate(), 0u);
  member(1, 1, 0, 30).epoch = 1;
  consider(30);
  member(2, 1, 0, 34).epoch = 1;
  consider(34);
  EXPECT_EQ(activation_->last_mixed(), milliseconds(4));
}

TEST_F(ActivationTest, WhatCameMeanwhileIsTheNextCandidateNewestOnly) {
  open({.group_commit = true});
  member(1, 0, 0, 0);
  commit(1);
  commit(2);
  commit(3);
  EXPECT_EQ(activation_->candidate(), 1u);
  member(1, 0, 1, 5);
  consider(5);
  swap(5);
  EXPECT_EQ(activation_->candidate(), 3u);
}

TEST_F(ActivationTest, WhatWasSaidOfAnEarlierCandidateIsNotOfThisOne) {
  open_with_two();
  member(1, 2, 0, 0);
  member(2, 2, 0, 0);
  ask({.version = 2}, {.version = 1}, 0, /*as_group=*/true);
  member(1, 2, 1, 0);
  consider(1000);
  EXPECT_TRUE(answer().refused);
  ask({.version = 2}, {.version = 1}, 1000, /*as_group=*/true, 2);
  say(member(2, 2, 0, 1000), 1);
  consider(1000);
  EXPECT_FALSE(activation_->take_swap()) << "the first one has dropped it since";
  say(member(1, 2, 0, 1001), 1);
  consider(1001);
  EXPECT_TRUE(activation_->take_swap());
}

TEST_F(ActivationTest, AMemberThatCannotIsNamedAndTheCandidateGivenUp) {
  open_with_two();
  member(1, 1, 0, 0);
  ask({.version = 2}, {.version = 1}, 0, /*as_group=*/true);
  say(member(1, 2, 0, 10), 1, Error(Code::corrupt, "a bit flipped"));
  consider(10);
  const Activated refused = answer();
  ASSERT_TRUE(refused.refused);
  EXPECT_EQ(refused.refused->code(), Code::corrupt);
  EXPECT_THAT(refused.refused->message(), HasSubstr("server (process 0) could not stage demo@1: a bit flipped"));
  EXPECT_EQ(activation_->candidate(), 0u);
  EXPECT_FALSE(activation_->take_swap());
}

TEST_F(ActivationTest, ASlowMemberEndsItAtTheDeadline) {
  open_with_two({.membership = std::chrono::seconds(5)});
  member(1, 2, 0, 0);
  ask({.version = 2}, {.version = 1}, 0, /*as_group=*/true);
  member(2, 2, 1, 0);
  consider(999);
  EXPECT_THAT(activation_->take_answers(), IsEmpty());
  EXPECT_LE(activation_->next_tick(), at(1000));
  consider(1000);
  const Activated refused = answer();
  EXPECT_EQ(refused.refused->code(), Code::timed_out);
  EXPECT_THAT(refused.refused->message(), HasSubstr("has not staged demo@1 in time, and serves @2"));
  EXPECT_EQ(activation_->current(), (Current{.version = 2}));
}

TEST_F(ActivationTest, ASilentMemberLapsesAndIsNotWaitedFor) {
  open({.group_commit = true, .membership = std::chrono::seconds(1)});
  member(1, 0, 0, 0);
  member(2, 0, 0, 0);
  commit(1);
  member(1, 0, 1, 900);
  for (std::int64_t ms = 100; ms <= 900; ms += 100) consider(ms);
  EXPECT_FALSE(activation_->take_swap());
  const Time lapses = activation_->next_tick();
  activation_->consider(members_, lapses - milliseconds(1));
  EXPECT_FALSE(activation_->take_swap());
  for (Time tick = lapses; !activation_->take_swap(); tick += milliseconds(100)) {
    ASSERT_LE(tick, at(2000));
    activation_->consider(members_, tick);
  }
}

TEST_F(ActivationTest, ASilentFollowerIsCountedThoughNobodyWaitsForIt) {
  open({});
  commit(1);
  swap();
  commit(2);
  swap();
  Activation::Follower& stopped = member(1, 2, 0, 0);
  stopped.member = false;
  member(2, 2, 0, 5000).member = false;
  ask({.version = 2}, {.version = 1, .hold = true}, 5000);
  swap(5000);
  EXPECT_THAT(activation_->take_answers(), IsEmpty()) << "the other one is waited for";
  members_[1].epoch = 1;
  consider(5004);
  const Activated told = answer();
  EXPECT_EQ(told.current, (Current{.epoch = 1, .version = 1, .hold = true}));
  EXPECT_EQ(told.behind, 1U);
  EXPECT_EQ(told.mixed_ns, 0) << "not known: two versions are served still";
  ask({.epoch = 1, .version = 1, .hold = true}, {.version = 1, .hold = true}, 6000, false, 2);
  EXPECT_EQ(answer().behind, 1U) << "asked once more, nothing is decided, and it serves the bad version still";
  members_[0].epoch = 1;
  ask({.epoch = 1, .version = 1, .hold = true}, {.version = 1, .hold = true}, 7000, false, 3);
  EXPECT_EQ(answer().behind, 0U);
}

TEST_F(ActivationTest, AFollowerThatFallsSilentMeanwhileIsCountedInTheEnd) {
  open({.membership = std::chrono::seconds(1)});
  commit(1);
  swap();
  commit(2);
  swap();
  member(1, 2, 0, 0).member = false;
  member(2, 2, 0, 0).member = false;
  ask({.version = 2}, {.version = 1, .hold = true}, 100);
  swap(100);
  for (std::int64_t ms = 200; activation_->needs_followers(); ms += 100) {
    ASSERT_LE(ms, 2000);
    member(2, 1, 0, ms).epoch = 1;
    consider(ms);
  }
  const Activated told = answer();
  EXPECT_EQ(told.behind, 1U);
  EXPECT_EQ(told.mixed_ns, 0);
}

TEST_F(ActivationTest, WhatOvertakesAnActivationAnswersItWithWhoIsBehind) {
  open({});
  for (const VersionNumber number : {1, 2, 3}) {
    commit(number);
    swap();
  }
  member(1, 3, 0, 0).member = false;
  ask({.version = 3}, {.version = 2, .hold = true}, 0);
  swap();
  ask({.epoch = 1, .version = 2, .hold = true}, {.version = 1, .hold = true}, 10, false, 2);
  EXPECT_THAT(activation_->take_answers(), IsEmpty());
  swap(10);
  EXPECT_EQ(answer().behind, 1U);
}

TEST_F(ActivationTest, ASilentMemberOfAGroupIsNotCounted) {
  open({});
  commit(1);
  swap();
  commit(2);
  swap();
  member(1, 2, 0, 0);
  member(2, 2, 0, 5000);
  ask({.version = 2}, {.version = 1}, 5000, /*as_group=*/true);
  say(member(2, 2, 0, 5001), 1);
  consider(5001);
  swap(5001);
  member(2, 1, 0, 5002).epoch = 1;
  consider(5002);
  EXPECT_EQ(answer().behind, 0U) << "it has lapsed, and knows it";
}

TEST_F(ActivationTest, APublisherThatWasStoppedBelievesNobodyLapsed) {
  open({.group_commit = true, .membership = std::chrono::seconds(1)});
  member(1, 0, 0, 0);
  commit(1);
  consider(9000);  // It slept; what its member said meanwhile is still in the socket.
  EXPECT_FALSE(activation_->take_swap());
  member(1, 0, 1, 9001);
  consider(9001);
  EXPECT_TRUE(activation_->take_swap());
}

TEST_F(ActivationTest, ASuccessorWaitsForTheMembersOfItsPredecessor) {
  open({.current = {.epoch = 1, .version = 4}, .group_commit = true, .membership = std::chrono::seconds(1)});
  commit(5, 10);
  EXPECT_FALSE(activation_->take_swap());
  for (std::int64_t ms = 100; ms < 1000; ms += 100) consider(ms);
  EXPECT_FALSE(activation_->take_swap());
  for (std::int64_t ms = 1000; ms <= 1400; ms += 100) consider(ms);
  EXPECT_TRUE(activation_->take_swap());
}

TEST_F(ActivationTest, GoingBackComesBeforeWhatIsBeingStaged) {
  open({.group_commit = true});
  commit(1);
  swap();
  member(1, 1, 0, 1);
  commit(2, 1);
  EXPECT_EQ(activation_->candidate(), 2u);
  ask({.epoch = 1, .version = 1}, {.version = 1, .hold = true}, 2);
  EXPECT_EQ(activation_->candidate(), 0u);
  swap(2);
  EXPECT_EQ(activation_->current(), (Current{.epoch = 2, .version = 1, .hold = true}));
  commit(3, 3);
  EXPECT_EQ(activation_->candidate(), 0u) << "held";
}

}  // namespace
}  // namespace freshet::protocol
