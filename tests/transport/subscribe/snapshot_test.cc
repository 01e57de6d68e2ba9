// SPDX-License-Identifier: Apache-2.0
/// What a snapshot keeps, and how a program waits for one.

#include <gmock/gmock.h>
#include <poll.h>

#include <atomic>
#include <functional>
#include <latch>
#include <stop_token>
#include <thread>

#include "tests/transport/model_fixture.h"

namespace freshet {
namespace {

using namespace freshet::test;

class SnapshotTest : public StreamTest {
 protected:
  std::unique_ptr<Publisher> open_keeping(std::size_t versions) {
    PublisherOptions options = publisher_options();
    options.keep_versions = versions;
    return open_publisher(options);
  }
  VersionNumber publish_stamp(Publisher& publisher, std::uint64_t stamp) {
    model_.stamp_all(stamp);
    return publish(publisher, model_);
  }
  StampedModel model_{4, 1000};
};

bool is_readable(int descriptor) {
  pollfd item{.fd = descriptor, .events = POLLIN, .revents = 0};
  return ::poll(&item, 1, 0) == 1;
}

TEST_F(SnapshotTest, OutlivesItsSubscriberAndThePublisherKeepsItsBytes) {
  for (const bool every : {false, true}) {
    SCOPED_TRACE(every);
    auto publisher = open_keeping(1);
    auto subscriber = open_subscriber(every ? every_options() : subscriber_options());
    const VersionNumber first = publish_stamp(*publisher, 41);
    ASSERT_TRUE(subscriber->wait_for(first, kPatience));
    Snapshot snapshot = subscriber->snapshot();
    Snapshot other = subscriber->snapshot();
    ASSERT_TRUE(snapshot && other);
    subscriber.reset();
    // Versions that would be written where the first lies, if nobody read it.
    for (std::uint64_t stamp = 42; stamp < 52; ++stamp) publish_stamp(*publisher, stamp);
    for (std::uint32_t tensor = 0; tensor < 4; ++tensor) EXPECT_EQ(stamp_of(snapshot, tensor), 41U);
    EXPECT_EQ(snapshot.version(), first);
    snapshot = Snapshot();
    EXPECT_EQ(stamp_of(other, 3), 41U);
    const auto subscribers = [&] { return publisher->stat().subscribers.size(); };
    EXPECT_TRUE(eventually([&] { return subscribers() == 1; }));
    other = Snapshot();
    EXPECT_TRUE(eventually([&] { return subscribers() == 0; })) << "its door closed with the last snapshot";
  }
}

TEST_F(SnapshotTest, OutlivesItsSubscriberAlsoWhenItWasFetched) {
  PublisherOptions options = publisher_options();
  options.hub_options.channels = std::vector{ChannelKind::zmq};
  auto publisher = open_publisher(options);
  SubscriberOptions fetches = subscriber_options();
  fetches.channel = ChannelKind::zmq;
  auto subscriber = open_subscriber(fetches);
  ASSERT_TRUE(subscriber->wait_for(publish_stamp(*publisher, 5), kPatience));
  Snapshot older = subscriber->snapshot();
  ASSERT_TRUE(subscriber->wait_for(publish_stamp(*publisher, 6), kPatience));
  Snapshot newer = subscriber->snapshot();
  subscriber.reset();
  publisher.reset();
  EXPECT_EQ(stamp_of(older, 2), 5U);
  EXPECT_EQ(stamp_of(newer, 2), 6U);
  older = Snapshot();
  EXPECT_EQ(stamp_of(newer, 0), 6U);
}

/// A sanitizer sees who touches what has gone.
TEST_F(SnapshotTest, ThreadsDropSnapshotsWhileTheSubscriberEnds) {
  auto publisher = open_publisher(publisher_options());
  publish_stamp(*publisher, 1);
  for (int round = 0; round < 20; ++round) {
    auto subscriber = open_subscriber(subscriber_options());
    ASSERT_TRUE(subscriber->wait_for(1, kPatience));
    std::atomic<int> reading{0};
    std::vector<std::thread> readers;
    for (int reader = 0; reader < 3; ++reader) {
      readers.emplace_back([&reading, snapshot = subscriber->snapshot()]() mutable {
        ++reading;
        EXPECT_EQ(stamp_of(snapshot, 1).has_value(), true);
        snapshot = Snapshot();
      });
    }
    if (round % 2 == 0) publish_stamp(*publisher, static_cast<std::uint64_t>(round) + 2);
    while (reading == 0) std::this_thread::yield();
    subscriber.reset();
    for (std::thread& reader : readers) reader.join();
  }
}

TEST_F(SnapshotTest, OfAKeptVersionByItsNumber) {
  auto publisher = open_keeping(3);
  auto subscriber = open_subscriber(subscriber_options());
  for (std::uint64_t stamp = 1; stamp <= 5; ++stamp) publish_stamp(*publisher, stamp * 10);
  ASSERT_TRUE(subscriber->wait_for(5, kPatience));
  const auto fourth = subscriber->snapshot_of(4, kPatience);
  ASSERT_TRUE(fourth) << fourth.error().message();
  EXPECT_EQ(fourth->version(), 4U);
  EXPECT_EQ(stamp_of(*fourth, 1), 40U);
  const auto third = subscriber->snapshot_of(3, kPatience);
  ASSERT_TRUE(third) << third.error().message();
  EXPECT_EQ(stamp_of(*third, 1), 30U);
  EXPECT_EQ(stamp_of(*fourth, 1), 40U);
  const auto served = subscriber->snapshot_of(5, Duration(0));
  ASSERT_TRUE(served) << served.error().message();
  EXPECT_EQ(stamp_of(*served, 1), 50U);
  EXPECT_EQ(subscriber->snapshot().version(), 5U) << "it goes on serving the newest";
  EXPECT_EQ(subscriber->snapshot_of(1, kPatience).error().code(), Code::not_found);
  EXPECT_EQ(subscriber->snapshot_of(0, kPatience).error().code(), Code::invalid_argument);
  for (std::uint64_t stamp = 6; stamp <= 9; ++stamp) publish_stamp(*publisher, stamp * 10);
  ASSERT_TRUE(subscriber->wait_for(9, kPatience)) << "and follows as before";
  EXPECT_EQ(stamp_of(*third, 0), 30U);

  SubscriberOptions member = subscriber_options();
  member.staged = true;
  EXPECT_EQ(open_subscriber(member)->snapshot_of(3, kPatience).error().code(), Code::failed_precondition);
  EXPECT_EQ(open_subscriber(every_options())->snapshot_of(3, kPatience).error().code(), Code::failed_precondition);
}

/// Its loop is held up, so that each request still waits to be run when it is given up.
TEST_F(SnapshotTest, ARequestThatWasGivenUpStagesNothing) {
  auto publisher = open_keeping(3);
  std::latch updating(1);
  std::latch go_on(1);
  SubscriberOptions options = subscriber_options();
  options.on_update = [&](const Update& update) {
    if (update.version != 2) return;
    updating.count_down();
    go_on.wait();
  };
  auto subscriber = open_subscriber(options);
  publish_stamp(*publisher, 1);
  EXPECT_TRUE(subscriber->wait_for(1, kPatience));
  publish_stamp(*publisher, 2);
  updating.wait();
  for (int i = 0; i < 50; ++i) {
    std::stop_source stop;
    std::thread stops([&stop] { stop.request_stop(); });
    const auto given_up = subscriber->snapshot_of(1, kPatience, stop.get_token());
    stops.join();
    EXPECT_TRUE(!given_up && given_up.error().code() == Code::cancelled);
  }
  go_on.count_down();
  publish_stamp(*publisher, 3);
  ASSERT_TRUE(subscriber->wait_for(3, kPatience));
  ASSERT_TRUE(eventually([&] { return publisher->stat().subscribers.at(0).serving == 3; }));
  EXPECT_EQ(subscriber->status().staged, 0U);
}

TEST_F(SnapshotTest, ThreadsMayAskForDifferentVersions) {
  auto publisher = open_keeping(4);
  auto subscriber = open_subscriber(subscriber_options());
  for (std::uint64_t stamp = 1; stamp <= 4; ++stamp) publish_stamp(*publisher, stamp);
  ASSERT_TRUE(subscriber->wait_for(4, kPatience));
  std::vector<std::thread> readers;
  for (VersionNumber version = 1; version <= 4; ++version) {
    readers.emplace_back([&subscriber, version] {
      const auto snapshot = subscriber->snapshot_of(version, kPatience);
      ASSERT_TRUE(snapshot) << snapshot.error().message();
      EXPECT_EQ(stamp_of(*snapshot, 2), version);
    });
  }
  for (std::thread& reader : readers) reader.join();
}

TEST_F(SnapshotTest, ADescriptorTellsOfUpdates) {
  auto publisher = open_publisher(publisher_options());
  auto subscriber = open_subscriber(subscriber_options());
  const auto descriptor = subscriber->updates_descriptor();
  ASSERT_TRUE(descriptor) << descriptor.error().message();
  EXPECT_EQ(subscriber->updates_descriptor().value(), *descriptor);
  EXPECT_FALSE(is_readable(*descriptor)) << "nothing is served";
  std::uint64_t updates = 0;
  for (std::uint64_t stamp = 1; stamp <= 3; ++stamp) {
    const VersionNumber version = publish_stamp(*publisher, stamp);
    pollfd item{.fd = *descriptor, .events = POLLIN, .revents = 0};
    ASSERT_EQ(::poll(&item, 1, 60'000), 1);
    ASSERT_EQ(::read(*descriptor, &updates, sizeof updates), static_cast<ssize_t>(sizeof updates));
    EXPECT_EQ(subscriber->snapshot().version(), version);
    EXPECT_FALSE(is_readable(*descriptor));
  }
  auto late = open_subscriber(subscriber_options());
  ASSERT_TRUE(late->wait_for(3, kPatience));
  EXPECT_TRUE(is_readable(late->updates_descriptor().value())) << "a version is served";
}

/// Each wait is stopped from another thread, while it waits or before it begins.
TEST_F(SnapshotTest, EveryWaitEndsWhenItsCallerStopsIt) {
  auto publisher = open_keeping(2);
  auto latest = open_subscriber(subscriber_options());
  auto every = open_subscriber(every_options());
  auto lonely = open_subscriber(subscriber_options("nobody-publishes-this"));
  publish_stamp(*publisher, 1);
  ASSERT_TRUE(latest->wait_for(1, kPatience));
  ASSERT_TRUE(every->next(kPatience));
  const std::vector<std::function<Status(const std::stop_token&)>> waits = {
      [&](const std::stop_token& stop) { return latest->wait_for(2, kPatience, stop); },
      [&](const std::stop_token& stop) -> Status {
        FRESHET_TRY(latest->snapshot_at_least({.min_version = 2, .at_most = kPatience}, stop));
        return {};
      },
      [&](const std::stop_token& stop) -> Status {
        FRESHET_TRY(every->next(kPatience, stop));
        return {};
      },
      [&](const std::stop_token& stop) -> Status {
        FRESHET_TRY(lonely->snapshot_of(1, kPatience, stop));
        return {};
      },
  };
  for (std::size_t i = 0; i < waits.size(); ++i) {
    SCOPED_TRACE(i);
    std::stop_source early;
    early.request_stop();
    EXPECT_EQ(waits[i](early.get_token()).error().code(), Code::cancelled);
    std::stop_source late;
    std::thread stops([&late] { late.request_stop(); });
    EXPECT_EQ(waits[i](late.get_token()).error().code(), Code::cancelled);
    stops.join();
  }
  EXPECT_TRUE(latest->wait_for(publish_stamp(*publisher, 2), kPatience)) << "and the next wait is as ever";
}

}  // namespace
}  // namespace freshet
