// SPDX-License-Identifier: Apache-2.0
// The server goes away, comes back, comes back without its memory, is stopped, is not there yet.

#include "core/base/interruption.h"
#include "tests/support/refused.h"
#include "tests/transport/redis/redis_fixture.h"

namespace freshet {
namespace {

using namespace freshet::test;

class RedisOutage : public RedisTest {};

class RedisDurable : public RedisTest {
 protected:
  RedisDurable() : RedisTest({.durable = true}) {}
};

TEST_F(RedisOutage, WhoeverComesFirstWaitsForTheServer) {
  server_.kill();
  const auto directory = open();
  EXPECT_TRUE(is_refused(directory->lookup("demo"), Code::unavailable));
  EXPECT_EQ(directory->claim("demo").error().code(), Code::unavailable);
  const auto watch = directory->watch("demo");
  ASSERT_TRUE(watch);
  EXPECT_EQ((*watch)->entry().error().code(), Code::unavailable);
  EXPECT_EQ((*watch)->current().error().code(), Code::unavailable);
  EXPECT_NE(directory->health().find("away"), std::string::npos) << directory->health();
  server_.start();
  grow_old();
  EXPECT_TRUE(hears(**watch, [&] { return (*watch)->entry().error().code() == Code::not_found; }));
  EXPECT_EQ(directory->health(), "reachable");
  claim(*directory);
}

TEST_F(RedisDurable, ARestartIsSurvivedAndTold) {
  const auto directory = open();
  const auto held = claim(*directory);
  ASSERT_TRUE(held->begin_incarnation(1000));
  ASSERT_TRUE(held->advertise(entry(1000)));
  const CurrentVersion rolled_back{.epoch = 2, .version = 3, .hold = true};
  ASSERT_TRUE(held->compare_and_swap_current({}, rolled_back));
  ASSERT_TRUE(held->record_number(1));
  const auto watch = directory->watch("demo");
  ASSERT_TRUE(hears(**watch, [&] { return (*watch)->entry().has_value(); }));

  ::testing::internal::CaptureStderr();
  server_.kill();
  ASSERT_TRUE(eventually([&] { return !is_reachable(*directory); }));
  // Numbers go on out of the block; the watch keeps what it knew.
  for (VersionNumber number = 2; number <= 16; ++number) ASSERT_TRUE(held->record_number(number)) << number;
  EXPECT_EQ((*watch)->entry()->incarnation, 1000U);
  EXPECT_EQ(*(*watch)->current(), rolled_back);
  // But they end with it, and what must be written is not pretended.
  EXPECT_TRUE(is_refused(held->record_number(1000), Code::unavailable));
  EXPECT_TRUE(is_refused(held->compare_and_swap_current(rolled_back, {.epoch = 3, .version = 1}), Code::unavailable));
  EXPECT_TRUE(held->standing());

  server_.start();
  ASSERT_TRUE(eventually([&] { return is_reachable(*directory); }));
  EXPECT_TRUE(held->record_number(1000));
  const auto other = open();
  EXPECT_EQ(other->claim("demo").error().code(), Code::already_exists);
  EXPECT_EQ(*other->current("demo"), rolled_back);
  EXPECT_EQ(other->lookup("demo")->incarnation, 1000U);
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("is away"), std::string::npos) << said;
  EXPECT_NE(said.find("is back"), std::string::npos) << said;
}

TEST_F(RedisDurable, NumbersOutliveServerAndPublisher) {
  {
    const auto directory = open();
    const auto held = claim(*directory);
    ASSERT_TRUE(held->begin_incarnation(1000));
    ASSERT_TRUE(held->record_number(5));
    server_.kill();
    ASSERT_TRUE(eventually([&] { return !is_reachable(*directory); }));
    ASSERT_TRUE(held->record_number(9));
  }
  server_.start();
  const auto directory = open();
  // Until the lease of the dead one lapses it is refused.
  Result<std::unique_ptr<Directory::Claim>> again = fail(Code::unavailable, "");
  ASSERT_TRUE(eventually([&] { return (again = directory->claim("demo")).has_value(); }));
  EXPECT_GE((*again)->last_number(), 9U);
  EXPECT_EQ(*(*again)->begin_incarnation(1), 1001U);
}

TEST_F(RedisOutage, ALivingPublisherWritesAWipedDirectoryAgain) {
  const auto directory = open();
  const auto held = claim(*directory);
  ASSERT_TRUE(held->begin_incarnation(1000));
  ASSERT_TRUE(held->advertise(entry(1000)));
  const CurrentVersion rolled_back{.epoch = 2, .version = 3, .hold = true};
  ASSERT_TRUE(held->compare_and_swap_current({}, rolled_back));
  ASSERT_TRUE(held->record_number(40));
  const auto watch = directory->watch("demo");
  const auto other = open();
  ASSERT_TRUE(other->lookup("demo"));
  ASSERT_EQ(command({"FLUSHALL"}), "OK");
  // A newcomer's name is in quarantine until the living owner had its chance.
  EXPECT_TRUE(is_refused(other->claim("demo"), Code::already_exists));
  EXPECT_EQ(other->lookup("demo")->incarnation, 1000U);
  EXPECT_EQ(*other->current("demo"), rolled_back);
  ASSERT_EQ(other->list()->size(), 1U);
  EXPECT_TRUE(hears(**watch, [&] { return (*watch)->entry().has_value(); }));
  EXPECT_TRUE(held->record_number(41));
}

TEST_F(RedisOutage, ANewDirectoryKeepsNewNamesWaitingOnce) {
  command({"FLUSHALL"});
  const auto directory = open();
  const auto before = std::chrono::steady_clock::now();
  const auto held = claim(*directory);
  EXPECT_GE(std::chrono::steady_clock::now() - before, short_times().lease - std::chrono::milliseconds(5));
  EXPECT_EQ(held->last_number(), 0U);
}

TEST_F(RedisOutage, AnInterruptedCallEndsAndTheNameIsFree) {
  RedisTimes patient = short_times();
  patient.answer_within = patient.patience = patient.lease = std::chrono::hours(1);
  const auto wanted = [] { return true; };
  command({"FLUSHALL"});
  {
    const auto directory = open(patient);
    const Interruption interruption(wanted);
    EXPECT_TRUE(is_refused(directory->claim("demo"), Code::cancelled));
  }
  grow_old();
  const auto directory = open(patient);
  {
    auto taken = claim(*directory);
    const Interruption interruption(wanted);
    taken.reset();
  }
  const auto held = claim(*directory);  // Its lease was an hour: it was given back.
  ASSERT_NE(held, nullptr);
  server_.stop();
  {
    const Interruption interruption(wanted);
    EXPECT_EQ(held->begin_incarnation(1000).error().code(), Code::cancelled);
    EXPECT_EQ(directory->lookup("demo").error().code(), Code::cancelled);
  }
  server_.go_on();
}

TEST_F(RedisOutage, AServerThatStandsStillIsNoticedAndNobodyWaitsLong) {
  const auto directory = open();
  const auto held = claim(*directory);
  ASSERT_TRUE(held->begin_incarnation(1000));
  ASSERT_TRUE(held->advertise(entry(1000)));
  server_.stop();
  const auto lookup = directory->lookup("demo");
  ASSERT_TRUE(is_refused(lookup, Code::unavailable));
  ASSERT_TRUE(eventually([&] { return !is_reachable(*directory); }));
  EXPECT_TRUE(held->record_number(1));
  server_.go_on();
  ASSERT_TRUE(eventually([&] { return is_reachable(*directory); }));
  // The lease may have lapsed meanwhile: it is written again, and still ours.
  ASSERT_TRUE(eventually([&] { return directory->lookup("demo").has_value(); }));
  EXPECT_TRUE(held->record_number(30));
  EXPECT_TRUE(held->standing());
}

TEST_F(RedisOutage, WhoLostItsNameNoticesAndGivesNoMoreNumbers) {
  const auto directory = open();
  const auto held = claim(*directory);
  ASSERT_TRUE(held->begin_incarnation(1000));
  ASSERT_TRUE(held->record_number(1));
  // As if it had been cut off for longer than its lease: the claim is gone, and another takes the name.
  RedisTimes long_lease = short_times();
  long_lease.lease = std::chrono::hours(1);
  const auto other = open(long_lease);
  Result<std::unique_ptr<Directory::Claim>> second = fail(Code::unavailable, "");
  ASSERT_TRUE(eventually([&] {
    command({"DEL", "freshet:demo:claim"});
    return (second = other->claim("demo")).has_value();
  }));
  EXPECT_GT((*second)->last_number(), 1U);
  ASSERT_TRUE(eventually([&] { return !held->standing().has_value(); }));
  EXPECT_TRUE(is_refused(held->record_number(2), Code::failed_precondition, "process"));
  EXPECT_EQ(held->compare_and_swap_current({}, {.epoch = 1}).error().code(), Code::failed_precondition);
  EXPECT_EQ(held->advertise(entry(1000)).error().code(), Code::failed_precondition);
  EXPECT_TRUE((*second)->begin_incarnation(5));
  EXPECT_TRUE((*second)->advertise(entry(2000)));
  EXPECT_EQ(other->lookup("demo")->incarnation, 2000U);
}

TEST_F(RedisOutage, ADeadPublisherOfThisHostIsWaitedFor) {
  const pid_t child = ::fork();
  if (child == 0) {
    const auto directory = open();
    auto claimed = directory->claim("demo");
    if (claimed) static_cast<void>(claimed->release());
    ::_exit(claimed ? 0 : 1);  // As one that was killed: the lease stands.
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  EXPECT_NE(claim(*open()), nullptr);
}

TEST_F(RedisOutage, ADeadPublishersEntryLapses) {
  const auto directory = open();
  auto held = claim(*directory);
  ASSERT_TRUE(held->advertise(entry(1000)));
  const auto watch = directory->watch("demo");
  ASSERT_TRUE(hears(**watch, [&] { return (*watch)->entry().has_value(); }));
  // As kill -9 leaves it: nobody renews, nobody releases.
  const std::string owner = command({"HGET", "freshet:demo:claim", "owner"});
  held.reset();
  command({"HSET", "freshet:demo:claim", "owner", owner, "entry", "{}"});
  command({"PEXPIRE", "freshet:demo:claim", "1"});
  EXPECT_TRUE(hears(**watch, [&] {
    const auto entry = (*watch)->entry();
    return !entry && entry.error().code() == Code::not_found;
  }));
}

}  // namespace
}  // namespace freshet
