// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "transport/protocol/messages.h"
#include "transport/redis/lease.h"

namespace freshet::redis {
namespace {

constexpr VersionNumber kBlock = 100;
constexpr Duration kLease = std::chrono::seconds(4);

class LeaseTest : public ::testing::Test {
 protected:
  static Record record(VersionNumber number) { return {.number = number, .incarnation = 7, .fence = 3}; }
  Lease lease(VersionNumber number = 10) { return Lease({.lease = kLease, .block = kBlock}, "demo", record(number)); }
  /// One keep that is answered as an honest directory does.
  bool keep(Lease& lease, bool again = false) {
    const Keep sent = lease.begin_keep(now_);
    Record kept = record(sent.number);
    kept.current = sent.current;
    return lease.on_kept({.record = kept, .again = again}, now_);
  }

  Time now_ = Time(std::chrono::hours(1));
};

TEST_F(LeaseTest, ANumberIsGivenOnceItsBlockIsReserved) {
  Lease books = lease();
  EXPECT_EQ(books.given(), 10U);
  const auto revision = books.give(11);
  EXPECT_NE(revision, 0U);
  EXPECT_FALSE(books.holds(revision));
  EXPECT_EQ(books.given(), 10U);
  EXPECT_LE(books.next_keep(), now_);
  keep(books);
  EXPECT_TRUE(books.holds(revision));
  EXPECT_EQ(books.give(11), 0U);
  EXPECT_EQ(books.given(), 11U);
  EXPECT_EQ(books.reserved(), 11 + kBlock);
}

TEST_F(LeaseTest, TheBlockIsFilledUpBeforeItIsUsedUpAndEndsWhileNobodyAnswers) {
  Lease books = lease(0);
  books.begin(8);
  keep(books);
  ASSERT_EQ(books.reserved(), kBlock);
  for (VersionNumber number = 1; number <= kBlock / 2; ++number) EXPECT_EQ(books.give(number), 0U);
  EXPECT_GT(books.next_keep(), now_);
  EXPECT_EQ(books.give(kBlock / 2 + 1), 0U);
  EXPECT_LE(books.next_keep(), now_);
  books.begin_keep(now_);
  books.on_failed(now_);
  EXPECT_GT(books.next_keep(), now_);
  for (VersionNumber number = kBlock / 2 + 2; number <= kBlock; ++number) EXPECT_EQ(books.give(number), 0U);
  EXPECT_NE(books.give(kBlock + 1), 0U);
  EXPECT_EQ(books.given(), kBlock);
  keep(books);
  EXPECT_EQ(books.give(kBlock + 1), 0U);
}

TEST_F(LeaseTest, WhatWasAskedForOnceIsAskedForAgain) {
  Lease books = lease(0);
  books.give(50);
  const Keep first = books.begin_keep(now_);
  books.on_failed(now_);  // Its answer was lost: the directory may have it.
  const Keep second = books.begin_keep(now_);
  EXPECT_GE(second.number, first.number);
}

TEST_F(LeaseTest, ItIsRenewedFourTimesInALease) {
  Lease books = lease();
  keep(books);
  EXPECT_EQ(books.next_keep(), now_ + kLease / 4);
  books.begin_keep(now_);
  EXPECT_EQ(books.next_keep(), Time::max()) << "one at a time";
  books.on_failed(now_);
  EXPECT_LT(books.next_keep(), now_ + kLease / 4);
  EXPECT_FALSE(books.lost()) << "silence is no loss";
  books.on_reconnected(now_);
  EXPECT_EQ(books.next_keep(), now_);
  EXPECT_TRUE(keep(books, /*again=*/true));
  EXPECT_FALSE(books.lost());
}

TEST_F(LeaseTest, LostIsForEver) {
  Lease books = lease();
  books.begin_keep(now_);
  EXPECT_FALSE(books.on_kept({.lost = "process 5 on other"}, now_));
  EXPECT_EQ(books.lost(), "process 5 on other");
  EXPECT_EQ(books.next_keep(), Time::max());
  books.on_reconnected(now_);
  EXPECT_EQ(books.next_keep(), Time::max());
}

TEST_F(LeaseTest, AnOwnerThatWasSilentForALeaseSaysSoAndWaitsIfItIsTold) {
  Lease books = lease();
  EXPECT_TRUE(books.begin_keep(now_).stale) << "nothing is known of when it was taken";
  Record kept = record(10);
  books.on_kept({.record = kept}, now_);
  EXPECT_FALSE(books.begin_keep(now_ + kLease).stale);
  books.on_failed(now_ + kLease);
  now_ += kLease + std::chrono::seconds(1);
  EXPECT_TRUE(books.begin_keep(now_).stale);
  EXPECT_FALSE(books.on_kept({.young = std::chrono::seconds(2)}, now_));
  EXPECT_FALSE(books.lost());
  EXPECT_EQ(books.next_keep(), now_ + std::chrono::seconds(2));
}

TEST_F(LeaseTest, NumbersThatSomebodyElseMovedAreNotOurs) {
  Lease books = lease();
  const Keep sent = books.begin_keep(now_);
  books.on_kept({.record = record(sent.number + 1)}, now_);
  EXPECT_TRUE(books.lost());
}

TEST_F(LeaseTest, AChangeDuringAKeepIsKeptByTheNext) {
  Lease books = lease();
  books.begin_keep(now_);
  const auto revision = books.advertise("{}");
  Record kept = record(10);
  books.on_kept({.record = kept}, now_);
  EXPECT_FALSE(books.holds(revision));
  EXPECT_EQ(books.next_keep(), now_);
  EXPECT_EQ(books.begin_keep(now_).entry, "{}");
}

TEST_F(LeaseTest, CurrentMovesForwardOnly) {
  Lease books = lease();
  books.saw({.epoch = 2, .version = 5, .hold = true});
  books.saw({.epoch = 1, .version = 50});
  books.saw({.epoch = 2, .version = 4});
  EXPECT_EQ(books.current(), (CurrentVersion{.epoch = 2, .version = 5, .hold = true}));
  EXPECT_EQ(books.begin_keep(now_).current, books.current());
}

TEST_F(LeaseTest, TheLastNumbersCanBeReserved) {
  Lease books = lease(protocol::kNumberMax - 2);
  books.give(protocol::kNumberMax - 1);
  EXPECT_LE(books.begin_keep(now_).number, protocol::kNumberMax);
}

}  // namespace
}  // namespace freshet::redis
