// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "bindings/runtime/scheduled_publisher.h"
#include "tests/support/temporary_folder.h"
#include "transport/subscriber.h"

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

TEST(ScheduledPublisher, AVersionSaysWhyItWasPublished) {
  const TemporaryFolder folder;
  auto publisher = Publisher::open({.model = "net", .hub_options = {.directory = folder.path()}}).value();
  auto subscriber = Subscriber::open({.model = "net", .directory = folder.path()}).value();
  // The loop takes no time, so stalls may take any share of it.
  auto scheduler = Scheduler::make({.schedule = "every:2", .limits = {.overhead_percent = 1e12}}).value();
  ScheduledPublisher scheduled(*publisher, *scheduler);
  const std::vector<float> weights(16, 1.0f);
  const TensorView view{{.name = "a.w", .dtype = DType::f32, .shape = {16}}, bytes_of(weights.data(), weights.size())};
  const auto told = [&](VersionNumber version) {
    EXPECT_TRUE(subscriber->wait_for(version, std::chrono::seconds(60)));
    const Snapshot snapshot = subscriber->snapshot();
    std::vector<std::string> values;
    for (const auto& [key, value] : snapshot.manifest().tags) {
      if (key == kScheduleTag) values.push_back(value);
    }
    return values;
  };
  VersionNumber last = 0;
  for (std::uint64_t step = 1; step <= 4; ++step) {
    const auto receipt = scheduled.publish_if_due({.step = step, .loss = 1}, {&view, 1}, {.step = step});
    ASSERT_TRUE(receipt) << receipt.error().message();
    if (!*receipt) continue;
    last = (*receipt)->version;
    EXPECT_EQ(told(last), std::vector{scheduler->last_decision().text()}) << "step " << step;
  }
  EXPECT_EQ(last, 2u);
  for (std::uint64_t step = 5; step <= 6; ++step) {
    ASSERT_TRUE(scheduled.publish_if_due({.step = step, .loss = 1}, {&view, 1}, {.tags = {{kScheduleTag, "mine"}}}));
  }
  EXPECT_EQ(told(3), std::vector<std::string>{"mine"});
}

TEST(ScheduledPublisher, TheEndOfALoopIsPublishedOnce) {
  const TemporaryFolder folder;
  auto publisher = Publisher::open({.model = "net", .hub_options = {.directory = folder.path()}}).value();
  auto scheduler = Scheduler::make({.schedule = "every:2", .limits = {.overhead_percent = 1e12}}).value();
  ScheduledPublisher scheduled(*publisher, *scheduler);
  const std::vector<float> weights(16, 1.0f);
  const TensorView view{{.name = "a.w", .dtype = DType::f32, .shape = {16}}, bytes_of(weights.data(), weights.size())};
  const auto last = [&](std::uint64_t step) { return scheduled.publish_last({&view, 1}, {.step = step}).value(); };
  const auto observe = [&](std::uint64_t step) {
    return scheduled.publish_if_due({.step = step, .loss = 1}, {&view, 1}, {.step = step}).value();
  };
  EXPECT_FALSE(last(0)) << "there was no iteration";
  ASSERT_FALSE(observe(1));
  ASSERT_TRUE(observe(2));
  EXPECT_FALSE(last(2)) << "it is published";
  ASSERT_FALSE(observe(3));
  const auto receipt = last(3);
  ASSERT_TRUE(receipt);
  EXPECT_EQ(receipt->version, 2u);
  EXPECT_FALSE(last(3));
  ASSERT_TRUE(publisher->wait_committed(2, std::chrono::seconds(60)));
  EXPECT_EQ(publisher->stat().versions.back().step, 3u);
}

}  // namespace
}  // namespace freshet
