// SPDX-License-Identifier: Apache-2.0
/// What is current, end to end: going back, holding, letting go, groups that commit all or none, and who lapsed.

#include <gtest/gtest.h>

#include <algorithm>
#include <latch>
#include <stop_token>
#include <thread>

#include "tests/support/refused.h"
#include "tests/transport/model_fixture.h"
#include "transport/ask/ask_stat.h"
#include "transport/directory/directory.h"

namespace freshet {
namespace {

using namespace freshet::test;
using std::chrono::milliseconds;

class CurrentStream : public StreamTest {
 protected:
  PublisherOptions keeping(std::size_t versions) const {
    PublisherOptions options = publisher_options();
    options.keep_versions = versions;
    options.arena_copies = 2.0 + static_cast<double>(versions);
    options.arena_limit_bytes = 64u << 20;
    return options;
  }
  PublisherOptions group_options() const {
    PublisherOptions options = keeping(3);
    options.group_commit = true;
    options.group_within = kPatience;
    return options;
  }
  SubscriberOptions member_options(const std::string& label) const {
    SubscriberOptions options = subscriber_options();
    options.staged = true;
    options.label = label;
    return options;
  }
  VersionNumber publish_next(Publisher& publisher) {
    model_.stamp_all(++stamp_);
    return publish(publisher, model_);
  }
  static bool serves(const Subscriber& subscriber, VersionNumber version) {
    return subscriber.status().serving == version;
  }

  StampedModel model_{4, 1000};
  std::uint64_t stamp_ = 0;
};

TEST_F(CurrentStream, ARollbackIsServedAndHeldUntilItIsReleased) {
  auto publisher = open_publisher(keeping(4));
  auto subscriber = open_subscriber(subscriber_options());
  for (int i = 0; i < 3; ++i) publish_next(*publisher);
  ASSERT_TRUE(subscriber->wait_for(3, kPatience));
  const Snapshot before = subscriber->snapshot();

  const auto back = publisher->rollback(2);
  ASSERT_TRUE(back) << back.error().message();
  EXPECT_EQ(back->current, (CurrentVersion{.epoch = 1, .version = 2, .hold = true}));
  ASSERT_TRUE(eventually([&] { return serves(*subscriber, 2); }));
  EXPECT_EQ(stamp_of(subscriber->snapshot(), 1), 2U);
  EXPECT_EQ(stamp_of(before, 1), 3U) << "a snapshot stays what it was";
  EXPECT_TRUE(eventually([&] { return subscriber->status().current == back->current; })) << "told after the swap";

  publish_next(*publisher);
  auto late = open_subscriber(subscriber_options());
  ASSERT_TRUE(late->wait_for(1, kPatience));
  EXPECT_EQ(late->snapshot().version(), 2U) << "a late joiner obeys the hold";
  EXPECT_TRUE(serves(*subscriber, 2));

  const auto released = publisher->release();
  ASSERT_TRUE(released) << released.error().message();
  EXPECT_EQ(released->current, (CurrentVersion{.epoch = 2, .version = 4, .hold = false}));
  ASSERT_TRUE(eventually([&] { return serves(*subscriber, 4) && serves(*late, 4); }));
  publish_next(*publisher);
  EXPECT_TRUE(subscriber->wait_for(5, kPatience));
}

TEST_F(CurrentStream, WhoeverIsToldFindsItSoInStat) {
  auto publisher = open_publisher(keeping(2));
  for (int i = 0; i < 2; ++i) publish_next(*publisher);
  for (int i = 0; i < 50; ++i) {
    const auto report = i % 2 == 0 ? publisher->rollback(1) : publisher->release();
    ASSERT_TRUE(report) << report.error().message();
    ASSERT_EQ(publisher->stat().current, report->current);
  }
}

TEST_F(CurrentStream, AVersionThatAReaderStillPinsIsServedAgain) {
  auto publisher = open_publisher(keeping(4));
  auto subscriber = open_subscriber(subscriber_options());
  publish_next(*publisher);
  ASSERT_TRUE(subscriber->wait_for(1, kPatience));
  auto old = std::make_unique<Snapshot>(subscriber->snapshot());
  publish_next(*publisher);
  ASSERT_TRUE(subscriber->wait_for(2, kPatience));
  ASSERT_TRUE(publisher->rollback(1));
  ASSERT_TRUE(eventually([&] { return serves(*subscriber, 1); }));
  old.reset();
  // Were its hold given up with the old pin, these would be written over what is served.
  for (int i = 0; i < 8; ++i) publish_next(*publisher);
  for (int i = 0; i < 100; ++i) ASSERT_EQ(stamp_of(subscriber->snapshot(), 0), 1U);
}

TEST_F(CurrentStream, EveryVersionStillComesInOrder) {
  auto publisher = open_publisher(keeping(4));
  auto every = open_subscriber(every_options());
  for (VersionNumber version = 1; version <= 6; ++version) {
    ASSERT_EQ(publish_next(*publisher), version);
    const auto delivery = every->next(kPatience);
    ASSERT_TRUE(delivery) << delivery.error().message();
    EXPECT_EQ(delivery->snapshot.version(), version);
    if (version == 3) {
      ASSERT_TRUE(publisher->rollback(2));
    }
  }
}

TEST_F(CurrentStream, WhatCannotBeIsToldWithTheReason) {
  auto publisher = open_publisher(keeping(2));
  EXPECT_EQ(publisher->release().error().code(), Code::not_found);
  for (int i = 0; i < 5; ++i) publish_next(*publisher);
  EXPECT_TRUE(is_refused(publisher->rollback(1), Code::not_found, "kept are @4, @5"));
  EXPECT_TRUE(
      is_refused(publisher->activate({.version = 4, .hold = true, .expected_epoch = 3}), Code::failed_precondition));
  EXPECT_EQ(publisher->stat().current, (CurrentVersion{.version = 5}));
  EXPECT_EQ(publisher->rollback(0).error().code(), Code::invalid_argument);
}

TEST_F(CurrentStream, ARestartedPublisherKeepsTheHold) {
  {
    auto publisher = open_publisher(keeping(4));
    for (int i = 0; i < 3; ++i) publish_next(*publisher);
    ASSERT_TRUE(publisher->rollback(2));
  }
  auto publisher = open_publisher(keeping(4));
  EXPECT_EQ(publisher->stat().current, (CurrentVersion{.epoch = 1, .version = 2, .hold = true}));
  const VersionNumber next = publish_next(*publisher);
  EXPECT_EQ(next, 4U);
  EXPECT_EQ(publisher->stat().current.version, 2U);
  auto late = open_subscriber(subscriber_options());
  EXPECT_TRUE(is_refused(late->snapshot_at_least({.min_version = 4, .at_most = kPatience}), Code::failed_precondition));
  ASSERT_TRUE(publisher->release());
  EXPECT_TRUE(late->wait_for(4, kPatience));
}

TEST_F(CurrentStream, AnotherProcessAsksThroughTheControlSocket) {
  auto publisher = open_publisher(keeping(4));
  auto subscriber = open_subscriber(subscriber_options());
  for (int i = 0; i < 3; ++i) publish_next(*publisher);
  ASSERT_TRUE(subscriber->wait_for(3, kPatience));
  const ActivationTarget target{.model = "demo", .directory = folder_.path()};
  const auto back = ask_activate(target, {.version = 1 + 1, .hold = true});
  ASSERT_TRUE(back) << back.error().message();
  EXPECT_EQ(back->current, (CurrentVersion{.epoch = 1, .version = 2, .hold = true}));
  ASSERT_TRUE(eventually([&] { return serves(*subscriber, 2); }));
  EXPECT_EQ(ask_activate(target, {.version = 3, .expected_epoch = 0}).error().code(), Code::failed_precondition);
  EXPECT_EQ(ask_activate({.model = "other", .directory = folder_.path()}, {.version = 3}).error().code(),
            Code::not_found);
  const auto stats = ask_publisher_stat(publisher->address(), "demo", kPatience);
  ASSERT_TRUE(stats) << stats.error().message();
  EXPECT_EQ((*stats)[0].current, back->current);
}

TEST_F(CurrentStream, AGroupServesAVersionOnceAllHaveStagedIt) {
  auto publisher = open_publisher(group_options());
  auto first = open_subscriber(member_options("first"));
  auto second = open_subscriber(member_options("second"));
  ASSERT_EQ(publish_next(*publisher), 1U);
  for (const auto& member : {first.get(), second.get()}) ASSERT_TRUE(member->wait_for(1, kPatience));
  // Both are members in good standing once the publisher heard that they serve it.
  const auto both_told = [&] {
    int told = 0;
    for (const auto& one : publisher->stat().subscribers) told += one.member && one.serving == 1 ? 1 : 0;
    return told == 2;
  };
  ASSERT_TRUE(eventually(both_told));
  for (VersionNumber version = 2; version <= 10; ++version) {
    ASSERT_EQ(publish_next(*publisher), version);
    for (const auto& member : {first.get(), second.get()}) ASSERT_TRUE(member->wait_for(version, kPatience));
    EXPECT_EQ(stamp_of(first->snapshot(), 3), version);
  }
  EXPECT_EQ(publisher->stat().activation_failure, "");
  EXPECT_TRUE(eventually([&] { return first->status().epoch == publisher->stat().current.epoch; }));
  EXPECT_FALSE(first->snapshot().stale());
}

TEST_F(CurrentStream, WhatIsStagedCanBeTriedOutBesideWhatIsServed) {
  for (const ChannelKind channel : {ChannelKind::shm, ChannelKind::zmq}) {
    SCOPED_TRACE(to_string(channel));
    PublisherOptions serving = keeping(4);
    serving.hub_options.listen = "tcp://127.0.0.1:*";
    serving.hub_options.channels = std::vector{ChannelKind::zmq};
    auto publisher = open_publisher(serving);
    SubscriberOptions options = member_options("tries");
    options.channel = channel;
    auto member = open_subscriber(options);
    const VersionNumber served = publish_next(*publisher);  // Numbers go on from one publisher to the next.
    ASSERT_TRUE(member->wait_for(served, kPatience));
    const std::uint64_t first = stamp_;
    EXPECT_EQ(member->staged_snapshot().error().code(), Code::failed_precondition);
    publish_next(*publisher);
    publish_next(*publisher);
    ASSERT_TRUE(member->stage(served + 1, kPatience));
    auto second = member->staged_snapshot();
    ASSERT_TRUE(second) << second.error().message();
    EXPECT_EQ(second->version(), served + 1);
    EXPECT_EQ(stamp_of(*second, 0), first + 1);
    EXPECT_EQ(member->snapshot().version(), served);

    // Another one is staged: the snapshot stays as it is while the publisher writes on.
    ASSERT_TRUE(member->stage(served + 2, kPatience));
    auto third = member->staged_snapshot();
    ASSERT_TRUE(third) << third.error().message();
    EXPECT_EQ(third->version(), served + 2);
    for (int i = 0; i < 12; ++i) publish_next(*publisher);
    EXPECT_EQ(stamp_of(*second, 0), first + 1);
    EXPECT_EQ(stamp_of(*third, 3), first + 2);

    // It is the very version that is served then.
    ASSERT_TRUE(member->commit_staged());
    EXPECT_EQ(member->staged_snapshot().error().code(), Code::failed_precondition);
    EXPECT_EQ(member->snapshot().bytes(0).data(), third->bytes(0).data());
  }
}

TEST_F(CurrentStream, AVersionThatWasStagedInVainIsLetGoOfWhenNobodyReadsIt) {
  auto publisher = open_publisher(keeping(4));
  auto member = open_subscriber(member_options("in vain"));
  publish_next(*publisher);
  ASSERT_TRUE(member->wait_for(1, kPatience));
  publish_next(*publisher);
  publish_next(*publisher);
  ASSERT_TRUE(member->stage(2, kPatience));
  auto snapshot = member->staged_snapshot();
  ASSERT_TRUE(snapshot);
  ASSERT_TRUE(member->stage(3, kPatience));
  const auto holds = [&](VersionNumber version) {
    const auto subscribers = publisher->stat().subscribers;  // A moment behind.
    const auto& held = subscribers.at(0).held;
    return std::find(held.begin(), held.end(), version) != held.end();
  };
  ASSERT_TRUE(eventually([&] { return holds(2) && holds(3); })) << "what is read is held, wanted or not";
  *snapshot = Snapshot();
  EXPECT_TRUE(eventually([&] { return !holds(2) && holds(3); }));
}

TEST_F(CurrentStream, AMemberStagesAndCommitsByHand) {
  auto publisher = open_publisher(keeping(4));
  auto member = open_subscriber(member_options("by hand"));
  publish_next(*publisher);
  ASSERT_TRUE(member->wait_for(1, kPatience));
  publish_next(*publisher);
  publish_next(*publisher);
  EXPECT_EQ(member->commit_staged().error().code(), Code::failed_precondition);
  const Status staged = member->stage(3, kPatience);
  ASSERT_TRUE(staged) << staged.error().message();
  EXPECT_EQ(member->status().staged, 3U);
  EXPECT_TRUE(serves(*member, 1));
  EXPECT_EQ(stamp_of(member->snapshot(), 0), 1U);
  const auto committed = member->commit_staged();
  ASSERT_TRUE(committed) << committed.error().message();
  EXPECT_EQ(*committed, 3U);
  EXPECT_EQ(stamp_of(member->snapshot(), 0), 3U);
  EXPECT_EQ(member->stage(77, kPatience).error().code(), Code::not_found);
  auto other = open_subscriber(subscriber_options());
  EXPECT_EQ(other->stage(2, kPatience).error().code(), Code::failed_precondition);
  // What is activated for everybody comes before what was chosen by hand.
  ASSERT_TRUE(publisher->rollback(2));
  EXPECT_TRUE(eventually([&] { return serves(*member, 2); }));
}

/// The subscriber's thread is held up in its callback, so the commit waits for it until the stop.
TEST_F(CurrentStream, AStopEndsACommitByHand) {
  auto publisher = open_publisher(keeping(4));
  auto options = member_options("stopped");
  std::latch goes_on(1);
  std::latch is_held(1);
  options.on_update = [&](const Update& update) {
    if (update.version != 2) return;
    is_held.count_down();
    goes_on.wait();
  };
  auto member = open_subscriber(options);
  publish_next(*publisher);
  ASSERT_TRUE(member->wait_for(1, kPatience));
  publish_next(*publisher);
  ASSERT_TRUE(member->stage(2, kPatience));
  std::stop_source early;
  early.request_stop();
  EXPECT_EQ(member->commit_staged(early.get_token()).error().code(), Code::cancelled);
  EXPECT_EQ(member->snapshot().version(), 1U) << "nothing was asked of the subscriber's thread";
  std::thread commits([&] { static_cast<void>(member->commit_staged()); });
  is_held.wait();
  std::stop_source late;
  std::thread stops([&late] { late.request_stop(); });
  EXPECT_EQ(member->commit_staged(late.get_token()).error().code(), Code::cancelled);
  goes_on.count_down();
  stops.join();
  commits.join();
  EXPECT_EQ(member->snapshot().version(), 2U);
}

TEST_F(CurrentStream, AMemberWithoutPublisherLapses) {
  auto options = group_options();
  options.membership = milliseconds(500);
  auto publisher = open_publisher(options);
  auto serving = open_subscriber(member_options("serves on"));
  auto refusing_options = member_options("refuses");
  refusing_options.when_lapsed = WhenLapsed::refuse;
  auto refusing = open_subscriber(refusing_options);
  publish_next(*publisher);
  ASSERT_TRUE(serving->wait_for(1, kPatience) && refusing->wait_for(1, kPatience));
  ASSERT_TRUE(eventually([&] { return !serving->status().stale && !refusing->status().stale; }));
  publisher.reset();
  ASSERT_TRUE(eventually([&] { return serving->status().stale && refusing->status().stale; }));
  EXPECT_TRUE(serving->snapshot().stale());
  EXPECT_EQ(stamp_of(serving->snapshot(), 0), 1U);
  EXPECT_FALSE(refusing->snapshot());
  EXPECT_TRUE(is_refused(refusing->snapshot_at_least({.at_most = milliseconds(1)}), Code::unavailable));
  publisher = open_publisher(options);
  ASSERT_TRUE(eventually([&] { return !serving->status().stale && bool(refusing->snapshot()); }));
}

TEST_F(CurrentStream, ASnapshotIsAsNewAsItWasAskedFor) {
  auto publisher = open_publisher(publisher_options());
  auto subscriber = open_subscriber(subscriber_options());
  EXPECT_TRUE(is_refused(subscriber->snapshot_at_least({.at_most = milliseconds(1)}), Code::timed_out,
                         "no version came; nothing is served yet"));
  publish_next(*publisher);
  const auto first = subscriber->snapshot_at_least({.min_version = 1, .at_most = kPatience});
  ASSERT_TRUE(first) << first.error().message();
  EXPECT_EQ(stamp_of(*first, 0), 1U);
  for (int i = 0; i < 20; ++i) {
    const VersionNumber version = publish_next(*publisher);
    // Nothing older than what was published before the question.
    const auto fresh = subscriber->snapshot_at_least({.max_staleness = Duration::zero(), .at_most = kPatience});
    ASSERT_TRUE(fresh) << fresh.error().message();
    EXPECT_GE(fresh->version(), version);
  }
  EXPECT_EQ(subscriber->snapshot_at_least({.min_version = 99, .at_most = milliseconds(1)}).error().code(),
            Code::timed_out);
  publisher.reset();
  ASSERT_TRUE(eventually([&] { return !subscriber->status().connected; }));
  const auto unconfirmed =
      subscriber->snapshot_at_least({.max_staleness = Duration::zero(), .at_most = milliseconds(50)});
  ASSERT_TRUE(is_refused(unconfirmed, Code::timed_out));
  EXPECT_TRUE(subscriber->snapshot_at_least({.max_staleness = kPatience, .at_most = milliseconds(50)}));
}

}  // namespace
}  // namespace freshet
