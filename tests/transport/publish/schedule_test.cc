// SPDX-License-Identifier: Apache-2.0
/// When readers are slow, memory is short, shapes change and training resumes.

#include "tests/support/refused.h"
#include "tests/transport/model_fixture.h"

namespace freshet {
namespace {

using namespace freshet::test;

class Schedule : public StreamTest {
 protected:
  /// An arena for `copies` versions that own everything.
  PublisherOptions with_room_for(double copies) const {
    PublisherOptions options = publisher_options();
    options.arena_copies = copies;
    options.arena_limit_bytes = static_cast<std::uint64_t>(copies * static_cast<double>(model_.bytes())) + 4096;
    return options;
  }
  static void wait_until_connected(const Subscriber& subscriber) {
    ASSERT_TRUE(eventually([&] { return subscriber.status().connected; }));
  }

  const PublishOptions all_{.changed = Changed::all()};
  StampedModel model_{8, 2048};
};

TEST_F(Schedule, EveryVersionComesInOrder) {
  auto publisher = open_publisher(publisher_options());
  auto subscriber = open_subscriber(every_options());
  wait_until_connected(*subscriber);
  for (std::uint64_t stamp = 1; stamp <= 30; ++stamp) {
    model_.stamp(stamp % 8, stamp);
    publish(*publisher, model_, {.changed = Changed::only({static_cast<std::uint32_t>(stamp % 8)})});
  }
  for (std::uint64_t stamp = 1; stamp <= 30; ++stamp) {
    const auto delivery = subscriber->next(kPatience);
    ASSERT_TRUE(delivery) << delivery.error().message();
    EXPECT_EQ(delivery->snapshot.version(), stamp);
    EXPECT_EQ(delivery->update.version, stamp);
    EXPECT_EQ(delivery->update.gap_before, 0U);
    EXPECT_EQ(stamp_of(delivery->snapshot, stamp % 8), stamp);
  }
  EXPECT_EQ(subscriber->next(Duration(0)).error().code(), Code::timed_out);
}

TEST_F(Schedule, ASlowTakerOfEveryVersionIsToldOfItsGap) {
  PublisherOptions options = publisher_options();
  options.every_queue_versions_max = 3;
  auto publisher = open_publisher(std::move(options));
  auto subscriber = open_subscriber(every_options());
  wait_until_connected(*subscriber);
  for (std::uint64_t stamp = 1; stamp <= 40; ++stamp) {
    model_.stamp_all(stamp);
    publish(*publisher, model_, all_);
  }
  std::uint64_t expected = 1;
  std::uint64_t gaps = 0;
  while (expected <= 40) {
    const auto delivery = subscriber->next(kPatience);
    ASSERT_TRUE(delivery) << delivery.error().message();
    expected += delivery->update.gap_before;
    gaps += delivery->update.gap_before;
    ASSERT_EQ(delivery->snapshot.version(), expected);
    EXPECT_EQ(stamp_of(delivery->snapshot, 0), expected);
    ++expected;
  }
  EXPECT_GT(gaps, 0U);
  EXPECT_TRUE(eventually([&] { return subscriber->status().gaps == gaps; })) << subscriber->status().gaps;
}

TEST_F(Schedule, ASlowReaderKeepsItsVersionWhileNewOnesCome) {
  auto publisher = open_publisher(publisher_options());
  auto subscriber = open_subscriber(subscriber_options());
  model_.stamp_all(1);
  ASSERT_TRUE(subscriber->wait_for(publish(*publisher, model_), kPatience));
  const Snapshot slow = subscriber->snapshot();
  for (std::uint64_t stamp = 2; stamp <= 60; ++stamp) {
    model_.stamp_all(stamp);
    ASSERT_TRUE(subscriber->wait_for(publish(*publisher, model_, all_), kPatience));
    ASSERT_EQ(stamp_of(subscriber->snapshot(), 7), stamp);
  }
  for (std::uint32_t t = 0; t < 8; ++t) EXPECT_EQ(stamp_of(slow, t), 1U);
}

TEST_F(Schedule, AVersionWithoutRoomIsSkippedAndItsChangesCarriedOver) {
  auto publisher = open_publisher(with_room_for(2));
  auto subscriber = open_subscriber(subscriber_options());
  model_.stamp_all(1);
  ASSERT_TRUE(subscriber->wait_for(publish(*publisher, model_, all_), kPatience));
  Snapshot pinned = subscriber->snapshot();
  model_.stamp_all(2);
  ASSERT_TRUE(subscriber->wait_for(publish(*publisher, model_, all_), kPatience));
  // Version 1 is pinned, version 2 is the newest: tensor 5 has no third place.
  model_.stamp(5, 3);
  EXPECT_TRUE(is_refused(publisher->publish(model_.views(), {.changed = Changed::only({5})}), Code::out_of_space));
  EXPECT_EQ(subscriber->snapshot().version(), 2U);
  EXPECT_EQ(stamp_of(pinned, 5), 1U);

  pinned = Snapshot();
  model_.stamp(6, 4);
  ASSERT_TRUE(eventually([&] {
    const auto receipt = publisher->publish(model_.views(), {.changed = Changed::only({6})});
    return receipt && publisher->wait_committed(receipt->version, kPatience);
  }));
  const VersionNumber newest = publisher->stat().newest;
  EXPECT_EQ(newest, 3U);
  ASSERT_TRUE(subscriber->wait_for(newest, kPatience));
  const Snapshot caught_up = subscriber->snapshot();
  EXPECT_EQ(stamp_of(caught_up, 5), 3U) << "the skipped version's change was lost";
  EXPECT_EQ(stamp_of(caught_up, 6), 4U);
  EXPECT_EQ(stamp_of(caught_up, 0), 2U);
  EXPECT_GE(publisher->stat().versions_skipped, 1U);
}

TEST_F(Schedule, SnapshotsBeyondTheLimitAreEmpty) {
  SubscriberOptions options = subscriber_options();
  options.pins_max = 2;
  auto publisher = open_publisher(publisher_options());
  auto subscriber = open_subscriber(std::move(options));
  ASSERT_TRUE(subscriber->wait_for(publish(*publisher, model_), kPatience));
  const Snapshot one = subscriber->snapshot();
  Snapshot two = subscriber->snapshot();
  EXPECT_TRUE(one);
  EXPECT_TRUE(two);
  EXPECT_FALSE(subscriber->snapshot());
  two = Snapshot();
  EXPECT_TRUE(subscriber->snapshot());
}

TEST_F(Schedule, AChangedShapeIsAnErrorUntilItIsMeant) {
  auto publisher = open_publisher(publisher_options());
  auto subscriber = open_subscriber(subscriber_options());
  ASSERT_TRUE(subscriber->wait_for(publish(*publisher, model_), kPatience));
  StampedModel wider(8, 4096);
  wider.stamp_all(2);
  const auto refused = publisher->publish(wider.views(), all_);
  ASSERT_TRUE(is_refused(refused, Code::failed_precondition));
  for (const char* part : {"layer0.weight", "u64[4096]", "u64[2048]"}) {
    EXPECT_NE(refused.error().message().find(part), std::string::npos) << refused.error().message();
  }
  EXPECT_FALSE(publisher->publish(StampedModel(7, 2048).views(), all_));
  EXPECT_FALSE(publisher->publish(StampedModel(8, 2048, "other").views(), all_));

  std::vector<TensorSpec> specs;
  for (const TensorView& view : wider.views()) specs.push_back(view.spec);
  auto architecture = Architecture::guess_chain(specs);
  ASSERT_TRUE(architecture);
  const VersionNumber version =
      publish(*publisher, wider, {.changed = Changed::only({}), .new_architecture = *architecture});
  ASSERT_TRUE(subscriber->wait_for(version, kPatience));
  const Snapshot snapshot = subscriber->snapshot();
  EXPECT_EQ(snapshot.bytes(0).size(), 4096U * 8);
  for (std::uint32_t t = 0; t < 8; ++t) EXPECT_EQ(stamp_of(snapshot, t), 2U);
  EXPECT_EQ(snapshot.manifest().ancestor_name.number, 1U);
  EXPECT_EQ(snapshot.manifest().owners.owned_by(snapshot.manifest().id).size(), 8U);
  // And from there on as ever.
  wider.stamp(3, 5);
  ASSERT_TRUE(subscriber->wait_for(publish(*publisher, wider, {.changed = Changed::only({3})}), kPatience));
  EXPECT_EQ(stamp_of(subscriber->snapshot(), 3), 5U);
}

TEST_F(Schedule, BadViewsAreRefused) {
  auto publisher = open_publisher(publisher_options());
  publish(*publisher, model_);
  std::vector<TensorView> views = model_.views();
  views[2].data = views[2].data.first(16);
  EXPECT_EQ(publisher->publish(views, all_).error().code(), Code::invalid_argument);
  EXPECT_EQ(publisher->publish(model_.views(), {.changed = Changed::only({8})}).error().code(), Code::invalid_argument);
  std::vector<TensorView> twice = model_.views();
  twice[1].spec.name = twice[0].spec.name;
  auto other = open_publisher(publisher_options("other"));
  EXPECT_EQ(other->publish(twice, all_).error().code(), Code::invalid_argument);
  EXPECT_EQ(publisher->wait_committed(77, Duration(0)).error().code(), Code::not_found);
}

TEST_F(Schedule, AResumedRunKeepsItsLineage) {
  auto subscriber = open_subscriber(subscriber_options());
  Manifest last;
  {
    auto publisher = open_publisher(publisher_options());
    model_.stamp_all(1);
    publish(*publisher, model_);
    model_.stamp(4, 2);
    ASSERT_TRUE(subscriber->wait_for(publish(*publisher, model_), kPatience));
    last = subscriber->snapshot().manifest();
  }
  PublisherOptions options = publisher_options();
  options.resume_from = std::make_shared<Manifest>(last);
  auto publisher = open_publisher(std::move(options));
  model_.stamp(6, 3);
  const VersionNumber version = publish(*publisher, model_, all_);
  EXPECT_EQ(version, 3U);
  ASSERT_TRUE(subscriber->wait_for(version, kPatience));
  const Manifest resumed = subscriber->snapshot().manifest();
  EXPECT_EQ(resumed.id.run, last.id.run);
  EXPECT_GT(resumed.id.incarnation, last.id.incarnation);
  EXPECT_EQ(resumed.ancestor, last.id);
  EXPECT_EQ(resumed.ancestor_name, last.name);
  EXPECT_EQ(resumed.owners.changed_since(last.owners), std::vector<std::uint32_t>{6});
}

TEST_F(Schedule, NumbersGrowOverRestarts) {
  VersionNumber before = 0;
  for (int life = 0; life < 3; ++life) {
    auto publisher = open_publisher(publisher_options());
    for (int i = 0; i < 3; ++i) {
      const VersionNumber version = publish(*publisher, model_);
      EXPECT_EQ(version, before + 1);
      before = version;
    }
  }
  PublisherOptions options = publisher_options();
  options.number_floor = 100;
  EXPECT_EQ(publish(*open_publisher(std::move(options)), model_), 101U);
}

}  // namespace
}  // namespace freshet
