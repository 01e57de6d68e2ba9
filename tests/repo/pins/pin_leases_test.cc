// SPDX-License-Identifier: Apache-2.0
/// Pins that end with whoever took them: the book of leases, the stored row, and a repository under a clock that is
/// turned by hand.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <thread>

#include "repo/backend/backend_wrapper.h"
#include "repo/pins/pin_leases.h"
#include "repo/records/records.h"
#include "tests/repo/world.h"

namespace freshet {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr PinLease kOne{.high = 1, .low = 1};
constexpr PinLease kTwo{.high = 1, .low = 2};

PinTerms of(const PinLease& lease) { return {.stays = false, .lease = lease}; }
const PinTerms kStays{.stays = true, .lease = {}};

TEST(PinRow, IsReadBackAndRefusesWhatItIsNot) {
  PinRow row;
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(row.add(std::nullopt));
  for (const PinLease& lease : {kTwo, kOne, kTwo}) ASSERT_TRUE(row.add(lease));
  EXPECT_EQ(encode(row), "3 00000000000000010000000000000001:1 00000000000000010000000000000002:2");
  EXPECT_EQ(decode_pin(encode(row)).value(), row);
  EXPECT_EQ(decode_pin("7")->stay, 7u) << "as it was stored before there were leases";
  const std::string lease = "00000000000000010000000000000001";
  for (const std::string& text :
       {std::string(), std::string("0"), std::string("x"), std::string("-1"), std::string("1 "), "0 " + lease,
        "0 " + lease + ":", "0 " + lease + ":0", "0 " + lease + ":1 ", "0 " + lease + ":1 " + lease + ":1",
        "0  " + lease + ":1", "0 g" + lease.substr(1) + ":1", "0 " + lease + ":1x",
        "0 " + lease + ":99999999999999999999999", std::string(1 << 20, ' ')}) {
    EXPECT_EQ(decode_pin(text).error().code(), Code::corrupt) << text.substr(0, 80);
  }
}

TEST(PinRow, TakesOnesOwnFirstThenOneThatStays) {
  PinRow row;
  for (const auto& lease : {std::optional<PinLease>(kOne), std::optional<PinLease>(kTwo), std::optional<PinLease>()}) {
    ASSERT_TRUE(row.add(lease));
  }
  row.take(kTwo);
  EXPECT_EQ(row, (PinRow{.stay = 1, .leased = {{.lease = kOne, .count = 1}}}));
  row.take(kTwo);
  EXPECT_EQ(row, (PinRow{.stay = 0, .leased = {{.lease = kOne, .count = 1}}}));
  row.take(kTwo);
  EXPECT_TRUE(row.empty()) << "who comes back under the same name takes what its former life left";
}

TEST(PinRow, HasALimit) {
  PinRow row;
  for (std::uint64_t i = 0; i < kLeasesPerPinMax; ++i) ASSERT_TRUE(row.add(PinLease{.high = 0, .low = i}));
  EXPECT_EQ(row.add(PinLease{.high = 1, .low = 0}).error().code(), Code::out_of_space);
  EXPECT_TRUE(row.add(PinLease{.high = 0, .low = 5}));
  EXPECT_EQ(decode_pin(encode(row)).value(), row);
}

TEST(PinLeases, EndAfterTheirTimeAndTheirOwnNever) {
  PinLeases leases(Time(seconds(100)), kOne);
  EXPECT_EQ(leases.end_of(kOne), std::nullopt);
  EXPECT_EQ(leases.end_of(kTwo), Time(seconds(100)) + kPinLease) << "of before this opening";
  ASSERT_TRUE(leases.renew(kTwo, Time(seconds(150))));
  EXPECT_FALSE(leases.has_ended(kTwo, Time(seconds(150)) + kPinLease - Duration(1)));
  EXPECT_TRUE(leases.has_ended(kTwo, Time(seconds(150)) + kPinLease));
  EXPECT_FALSE(leases.has_ended(kOne, Time(seconds(1'000'000))));
}

TEST(PinLeases, MakeRoomOfThoseThatEnded) {
  PinLeases leases(Time(seconds(1)), kOne);
  for (std::uint64_t i = 0; i < kPinLeasesMax; ++i) {
    ASSERT_TRUE(leases.renew(PinLease{.high = 5, .low = i}, Time(seconds(1))));
  }
  EXPECT_EQ(leases.renew(kTwo, Time(seconds(2))).error().code(), Code::out_of_space);
  EXPECT_TRUE(leases.renew(PinLease{.high = 5, .low = 7}, Time(seconds(2))));
  EXPECT_TRUE(leases.renew(kTwo, Time(seconds(1)) + kPinLease));
  EXPECT_FALSE(leases.has_ended(PinLease{.high = 5, .low = 7}, Time(seconds(1)) + kPinLease));
}

// Clients that live renew, those that died do not; a model that only knows the rule says who must hold and who must
// not.
TEST(PinLeases, AgreeWithAModel) {
  const std::uint64_t seed = 20261121;
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  Time now(seconds(50));
  PinLeases leases(now, PinLease{.high = 9, .low = 9});
  PinRow row;
  std::map<std::uint64_t, std::pair<std::uint64_t, Time>> model;  // Count and last sign of life, by client.
  std::uint64_t stay = 0;
  for (int step = 0; step < 20000; ++step) {
    now += Duration(seconds(random() % 20));
    const std::uint64_t client = random() % 6;
    const PinLease lease{.high = 0, .low = client};
    row.drop_ended(leases, now);
    std::erase_if(model, [&](const auto& one) { return one.second.second + kPinLease <= now; });
    switch (random() % 5) {
      case 0:
        ASSERT_TRUE(leases.renew(lease, now));
        ASSERT_TRUE(row.add(lease));
        ++model[client].first;
        model[client].second = now;
        break;
      case 1:
        ASSERT_TRUE(row.add(std::nullopt));
        ++stay;
        break;
      case 2:
        if (row.empty()) break;
        row.take(lease);
        if (model.contains(client)) {
          if (--model[client].first == 0) model.erase(client);
        } else if (stay != 0) {
          --stay;
        } else if (--model.begin()->second.first == 0) {
          model.erase(model.begin());
        }
        break;
      default:
        ASSERT_TRUE(leases.renew(lease, now));
        if (model.contains(client)) model[client].second = now;
    }
    ASSERT_EQ(row.stay, stay);
    ASSERT_EQ(row.leased.size(), model.size());
    for (const PinRow::Leased& one : row.leased) ASSERT_EQ(one.count, model.at(one.lease.low).first) << step;
  }
}

class LeasedPins : public ::testing::Test {
 protected:
  LeasedPins() {
    clock_.advance(seconds(1000));
    version_ = make_version("net", test_id(1), test_architecture({10}), nullptr, {}, random_);
    reopen();
    EXPECT_TRUE(put(*repository_, version_));
  }
  void reopen() {
    repository_.reset();
    repository_ = ProviderRepository::open(std::make_unique<BackendWrapper>(backend_), {.clock = &clock_}).value();
  }
  Status retire(Duration wait = {}) {
    const auto retired = repository_->retire(name_, {.wait = wait});
    return retired ? Status() : Status(fail(retired.error()));
  }

  std::mt19937_64 random_{1};
  ManualClock clock_;
  std::shared_ptr<Backend> backend_ = make_memory_backend();
  std::unique_ptr<ProviderRepository> repository_;
  TestVersion version_;
  const VersionName name_{.model = "net", .number = 1};
};

TEST_F(LeasedPins, HoldAsLongAsTheyAreRenewedAndSayUntilWhen) {
  ASSERT_TRUE(repository_->pin(name_, "worker", of(kOne)));
  for (int i = 0; i < 10; ++i) {
    clock_.advance(kPinLease / 2);
    ASSERT_TRUE(repository_->renew_pins(kOne));
  }
  clock_.advance(seconds(26));
  EXPECT_EQ(retire().error().message(), "net@1 is pinned by worker (for 94 s, unless it renews)");
  EXPECT_THAT(repository_->pins(name_).value(), ElementsAre("worker"));
  clock_.advance(seconds(94));
  EXPECT_THAT(repository_->pins(name_).value(), IsEmpty());
  EXPECT_TRUE(retire());
  EXPECT_THAT(repository_->verify(std::nullopt, {})->corrupt, IsEmpty()) << "the pin's record went along";
}

TEST_F(LeasedPins, ThoseThatAreToStayStay) {
  ASSERT_TRUE(repository_->pin(name_, "me", kStays));
  ASSERT_TRUE(repository_->pin(name_, "me", of(kOne)));
  clock_.advance(kPinLease * 1000);
  reopen();
  clock_.advance(kPinLease * 1000);
  EXPECT_EQ(retire().error().message(), "net@1 is pinned by me");
  ASSERT_TRUE(repository_->unpin(name_, "me"));
  EXPECT_TRUE(retire());
}

TEST_F(LeasedPins, ThoseOfALivingOwnerHoldWithoutRenewal) {
  ASSERT_TRUE(repository_->pin(name_, "worker"));
  clock_.advance(kPinLease * 10);
  EXPECT_EQ(retire().error().message(), "net@1 is pinned by worker");
}

TEST_F(LeasedPins, WhatAKilledOwnerLeftEndsAfterTheNextOpening) {
  ASSERT_TRUE(repository_->match({.graph = MatchGraph::of(*version_.manifest.architecture), .pin_by = "search-7"}));
  clock_.advance(kPinLease * 10);
  reopen();
  EXPECT_EQ(retire().error().message(), "net@1 is pinned by search-7 (for 120 s, unless it renews)");
  EXPECT_THAT(repository_->verify(std::nullopt, {})->corrupt, IsEmpty());
  clock_.advance(kPinLease);
  EXPECT_TRUE(retire());
}

TEST_F(LeasedPins, AClientThatLivesKeepsItsPinsAcrossARestart) {
  ASSERT_TRUE(repository_->pin(name_, "worker", of(kOne)));
  reopen();
  clock_.advance(kPinLease - seconds(1));
  ASSERT_TRUE(repository_->renew_pins(kOne));
  clock_.advance(kPinLease - seconds(1));
  EXPECT_FALSE(retire());
  ASSERT_TRUE(repository_->unpin(name_, "worker", of(kOne)));
  EXPECT_TRUE(retire());
}

TEST_F(LeasedPins, WhoeverWaitsGoesOnWhenALeaseEnds) {
  ASSERT_TRUE(repository_->pin(name_, "dead", of(kOne)));
  Status waited;
  std::thread waiting([&] { waited = retire(std::chrono::hours(1)); });
  clock_.advance(kPinLease);
  waiting.join();
  EXPECT_TRUE(waited) << waited.error().message();
}

TEST_F(LeasedPins, WhoComesBackTooLateMayStillUnpin) {
  ASSERT_TRUE(repository_->pin(name_, "slow", of(kOne)));
  clock_.advance(kPinLease * 2);
  EXPECT_TRUE(repository_->unpin(name_, "slow", of(kOne)));
  EXPECT_EQ(repository_->unpin(name_, "slow", of(kOne)).error().code(), Code::not_found);
}

TEST_F(LeasedPins, ADamagedPinHolds) {
  ASSERT_TRUE(repository_->pin(name_, "worker", of(kOne)));
  ASSERT_TRUE(backend_->apply({Backend::Put{pin_key(name_, "worker"), "?"}}));
  clock_.advance(kPinLease * 2);
  EXPECT_EQ(retire().error().message(), "net@1 is pinned by worker");
  ASSERT_EQ(repository_->verify(std::nullopt, {})->corrupt.size(), 1u);
}

}  // namespace
}  // namespace freshet
