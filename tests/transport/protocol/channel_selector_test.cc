// SPDX-License-Identifier: Apache-2.0
#include "transport/protocol/channel_selector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/refused.h"
#include "tests/transport/protocol/machine_fixture.h"

namespace freshet::protocol::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr std::uint32_t kAllKinds =
    bit(ChannelKind::shm) | bit(ChannelKind::ucx) | bit(ChannelKind::zmq) | bit(ChannelKind::file);
constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

const std::vector<ChannelOffer> kOffers = {{.kind = ChannelKind::file, .address = "/f"},
                                           {.kind = ChannelKind::zmq, .address = "tcp://z"},
                                           {.kind = ChannelKind::ucx, .address = "u"},
                                           {.kind = ChannelKind::shm, .address = "door"}};

ChannelKind chosen(const ChannelSelector& selector, bool same_host, std::int64_t ms = 0) {
  const auto choice = selector.choose(kOffers, same_host, at(ms));
  EXPECT_TRUE(choice) << choice.error().message();
  return choice->offer.kind;
}

TEST(ChannelSelector, PrefersMemoryThenATrustedFabricThenANetworkThenAFolder) {
  EXPECT_EQ(chosen(ChannelSelector({.usable = kAllKinds}), true), ChannelKind::shm);
  EXPECT_EQ(chosen(ChannelSelector({.usable = kAllKinds, .trusted_fabric = true}), false), ChannelKind::ucx);
  EXPECT_EQ(chosen(ChannelSelector({.usable = kAllKinds}), false), ChannelKind::zmq);
  EXPECT_EQ(chosen(ChannelSelector({.usable = kAllKinds & ~bit(ChannelKind::shm)}), true), ChannelKind::ucx);
  EXPECT_EQ(chosen(ChannelSelector({.usable = bit(ChannelKind::file) | bit(ChannelKind::ucx)}), false),
            ChannelKind::file);
}

TEST(ChannelSelector, TakesNcclWhereItIsOfferedAndTheFabricIsTrusted) {
  auto offers = kOffers;
  offers.push_back({.kind = ChannelKind::nccl, .address = "tcp://n"});
  const std::uint32_t usable = kAllKinds | bit(ChannelKind::nccl);
  const auto taken = [&](bool trusted, bool same_host) {
    return ChannelSelector({.usable = usable, .trusted_fabric = trusted}).choose(offers, same_host, at(0))->offer.kind;
  };
  EXPECT_EQ(taken(true, false), ChannelKind::nccl);
  EXPECT_EQ(taken(false, false), ChannelKind::zmq);
  EXPECT_EQ(taken(true, true), ChannelKind::shm);
}

TEST(ChannelSelector, SaysWhyNothingCanBeUsed) {
  EXPECT_TRUE(
      is_refused(ChannelSelector().choose(kOffers, false, at(0)), Code::unsupported, "file, zmq, ucx, shm offered"));
  const auto asked = ChannelSelector({.usable = kAllKinds, .only = ChannelKind::ucx}).choose({kOffers[1]}, true, at(0));
  ASSERT_FALSE(asked);
  EXPECT_THAT(asked.error().message(), HasSubstr("ucx was asked for"));
  EXPECT_FALSE(ChannelSelector({.usable = kAllKinds, .only = ChannelKind::ucx}).choose(kOffers, false, at(0)))
      << "the fabric is not trusted, whoever asks";
}

TEST(ChannelSelector, TakesWhatIsAskedFor) {
  const ChannelSelector selector({.usable = kAllKinds, .only = ChannelKind::zmq});
  const auto choice = selector.choose(kOffers, true, at(0));
  ASSERT_TRUE(choice);
  EXPECT_EQ(choice->offer, kOffers[1]);
  EXPECT_THAT(choice->why, HasSubstr("asked for"));
}

TEST(ChannelSelector, AvoidsWhatFailedForAPauseThatGrows) {
  ChannelSelector selector({.usable = kAllKinds, .trusted_fabric = true});
  selector.failed(ChannelKind::ucx, "no route", at(0));
  const auto choice = selector.choose(kOffers, false, at(0));
  ASSERT_TRUE(choice);
  EXPECT_EQ(choice->offer.kind, ChannelKind::zmq);
  EXPECT_THAT(choice->why, HasSubstr("ucx avoided for now, it failed: no route"));
  EXPECT_EQ(chosen(selector, false, 999), ChannelKind::zmq);
  EXPECT_EQ(chosen(selector, false, 1000), ChannelKind::ucx);
  selector.failed(ChannelKind::ucx, "no route", at(1000));
  EXPECT_EQ(chosen(selector, false, 2999), ChannelKind::zmq);
  EXPECT_EQ(chosen(selector, false, 3000), ChannelKind::ucx);
  for (int i = 0; i < 40; ++i) selector.failed(ChannelKind::ucx, "no route", at(3000));
  EXPECT_EQ(chosen(selector, false, 3000 + 59'999), ChannelKind::zmq);
  EXPECT_EQ(chosen(selector, false, 3000 + 60'000), ChannelKind::ucx) << "no pause is longer than a minute";
  selector.worked(ChannelKind::ucx);
  selector.failed(ChannelKind::ucx, "no route", at(70'000));
  EXPECT_EQ(chosen(selector, false, 71'000), ChannelKind::ucx) << "what worked starts anew";
  selector.failed(ChannelKind::ucx, "no route", at(71'000));
  selector.forget_failures();
  EXPECT_EQ(chosen(selector, false, 71'000), ChannelKind::ucx);
}

TEST(ChannelSelector, WhenAllFailedTheFirstToBeFreeIsTakenThenAndAfterTwoSecondsAtTheLatest) {
  ChannelSelector selector({.usable = bit(ChannelKind::ucx) | bit(ChannelKind::zmq), .trusted_fabric = true});
  selector.failed(ChannelKind::ucx, "no route", at(0));
  selector.failed(ChannelKind::zmq, "refused", at(100));
  auto choice = selector.choose(kOffers, false, at(200));
  ASSERT_TRUE(choice);
  EXPECT_EQ(choice->offer.kind, ChannelKind::ucx);
  EXPECT_EQ(choice->not_before, at(1000));
  for (int i = 0; i < 5; ++i) {
    selector.failed(ChannelKind::ucx, "no route", at(300));
    selector.failed(ChannelKind::zmq, "refused", at(300));
  }
  choice = selector.choose(kOffers, false, at(400));
  ASSERT_TRUE(choice);
  EXPECT_EQ(choice->not_before, at(2300));
}

TEST(ChannelSelector, WhatIsMeasuredClearlyFasterIsPreferredWhileTheMeasurementIsFresh) {
  ChannelSelector selector({.usable = kAllKinds, .trusted_fabric = true});
  selector.measured(ChannelKind::ucx, 100 * kMiB, seconds(1), at(0));
  EXPECT_NEAR(selector.bandwidth(ChannelKind::ucx, at(0)), 100.0 * kMiB, 1);
  selector.measured(ChannelKind::zmq, 140 * kMiB, seconds(1), at(0));
  EXPECT_EQ(chosen(selector, false, 0), ChannelKind::ucx) << "not clearly";
  selector.measured(ChannelKind::zmq, 400 * kMiB, seconds(1), at(0));
  const auto choice = selector.choose(kOffers, false, at(0));
  ASSERT_TRUE(choice);
  EXPECT_EQ(choice->offer.kind, ChannelKind::zmq);
  EXPECT_THAT(choice->why, HasSubstr("MiB/s"));
  EXPECT_EQ(chosen(selector, false, 60'001), ChannelKind::ucx) << "too long ago";
}

TEST(ChannelSelector, SmallFetchesTellNothing) {
  ChannelSelector selector;
  selector.measured(ChannelKind::zmq, 4096, milliseconds(1), at(0));
  selector.measured(ChannelKind::zmq, 100 * kMiB, Duration(0), at(0));
  EXPECT_EQ(selector.bandwidth(ChannelKind::zmq, at(0)), 0);
}

TEST(ChannelSelector, MemoryIsNeverMeasuredAway) {
  ChannelSelector selector({.usable = kAllKinds});
  selector.measured(ChannelKind::shm, 2 * kMiB, seconds(1), at(0));
  selector.measured(ChannelKind::ucx, 900 * kMiB, seconds(1), at(0));
  EXPECT_EQ(chosen(selector, true), ChannelKind::shm);
}

}  // namespace
}  // namespace freshet::protocol::test
