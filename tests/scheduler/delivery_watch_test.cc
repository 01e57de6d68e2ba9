// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "bindings/runtime/scheduled_publisher.h"

namespace freshet {
namespace {

using std::chrono::milliseconds;

PublisherStat serving(std::vector<VersionNumber> servers, VersionNumber repository) {
  PublisherStat stat;
  for (const VersionNumber version : servers) stat.subscribers.push_back({.label = "server", .serving = version});
  if (repository > 0) stat.subscribers.push_back({.label = "repository", .every = true, .serving = repository});
  return stat;
}

Time at(int ms) { return Time(milliseconds(ms)); }

TEST(DeliveryWatch, AVersionHasArrivedWhenHalfOfTheServersServeIt) {
  DeliveryWatch watch;
  EXPECT_FALSE(watch.waits());
  watch.published(7, at(100));
  EXPECT_TRUE(watch.waits());
  EXPECT_FALSE(watch.look(serving({6, 6, 7}, 6), at(105)).delivered);
  const auto arrivals = watch.look(serving({6, 7, 7}, 6), at(112));
  EXPECT_EQ(arrivals.delivered, milliseconds(12));
  EXPECT_FALSE(arrivals.persisted);
  EXPECT_TRUE(watch.waits()) << "for the repository";
  EXPECT_EQ(watch.look(serving({7, 7, 7}, 7), at(130)).persisted, milliseconds(30));
  EXPECT_FALSE(watch.waits());
}

TEST(DeliveryWatch, AnOvertakenVersionCountsForNothing) {
  DeliveryWatch watch;
  watch.published(1, at(0));
  watch.published(2, at(50));
  EXPECT_EQ(watch.look(serving({2}, 0), at(60)).delivered, milliseconds(10));
  EXPECT_FALSE(watch.waits()) << "nobody keeps versions, and nobody is waited for";
}

TEST(DeliveryWatch, SilentOnesAreNotWaitedFor) {
  DeliveryWatch watch;
  watch.published(1, at(0));
  PublisherStat stat = serving({0, 0, 1}, 0);
  stat.subscribers[0].silent = stat.subscribers[1].silent = true;
  EXPECT_EQ(watch.look(stat, at(4)).delivered, milliseconds(4));
}

TEST(DeliveryWatch, WithoutSubscribersNothingPilesUp) {
  DeliveryWatch watch;
  for (VersionNumber version = 1; version <= 1000; ++version) watch.published(version, at(0));
  EXPECT_FALSE(watch.look({}, at(1)).delivered);
  EXPECT_FALSE(watch.waits());
}

}  // namespace
}  // namespace freshet
