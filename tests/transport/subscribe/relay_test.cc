// SPDX-License-Identifier: Apache-2.0
/// Subscribers that serve again: neighbours map what a relay fetched, hosts further on fetch from it, and one that dies
/// is routed around. Hosts are played by host directories of their own.

#include "core/base/mutex.h"
#include "tests/support/refused.h"
#include "tests/transport/model_fixture.h"
#include "transport/option_text.h"
#include "transport/subscribe/fetch/channel_openers.h"

namespace freshet {
namespace {

using namespace freshet::test;

class RelayTest : public StreamTest, public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    const auto kind = parse_channel(GetParam());
    ASSERT_TRUE(kind);
    if (!channel_openers({}, std::nullopt).contains(**kind)) GTEST_SKIP() << "there is no channel " << GetParam();
  }

  std::unique_ptr<Publisher> open_origin() {
    PublisherOptions options = publisher_options(own_model());
    options.hub_options.listen = "tcp://127.0.0.1:*";
    options.hub_options.channels = parse_channel_choice(GetParam()).value();
    options.lock_memory = false;
    return open_publisher(std::move(options));
  }
  std::shared_ptr<PublisherHub> open_hub(const std::string& folder) {
    auto hub = open_publisher_hub(
        {.listen = "tcp://127.0.0.1:*", .directory = folder, .channels = parse_channel_choice(GetParam()).value()});
    EXPECT_TRUE(hub) << hub.error().message();
    return hub ? *hub : nullptr;
  }
  SubscriberOptions fetching_from(const std::string& at) const {
    SubscriberOptions options{.model = own_model(), .at = parse_addresses(at)};
    options.channel = parse_channel(GetParam()).value();
    options.lock_memory = false;
    return options;
  }
  std::unique_ptr<Subscriber> open_relay(const std::string& at, std::shared_ptr<PublisherHub> hub) const {
    SubscriberOptions options = fetching_from(at);
    options.relay = std::move(hub);
    return open_subscriber(std::move(options));
  }
  void expect_served(Subscriber& subscriber, VersionNumber version, std::uint64_t stamp) {
    const Status came = subscriber.wait_for(version, kPatience);
    ASSERT_TRUE(came) << came.error().message();
    const Snapshot snapshot = subscriber.snapshot();
    ASSERT_EQ(snapshot.version(), version);
    for (std::uint32_t tensor = 0; tensor < 4; ++tensor) EXPECT_EQ(stamp_of(snapshot, tensor), stamp);
  }

  StampedModel model_{4, 5000};
  TemporaryFolder host_;
  TemporaryFolder other_host_;
};

INSTANTIATE_TEST_SUITE_P(Channels, RelayTest, ::testing::Values("ucx", "zmq"),
                         [](const auto& kind) { return std::string(kind.param); });

TEST_P(RelayTest, NeighboursMapWhatWasFetchedOnce) {
  auto origin = open_origin();
  auto relay = open_relay(origin->address(), open_hub(host_.path()));
  auto neighbour = open_subscriber({.model = own_model(), .directory = host_.path()});
  auto second = open_subscriber({.model = own_model(), .directory = host_.path()});
  for (std::uint64_t stamp = 1; stamp <= 12; ++stamp) {
    model_.stamp_all(stamp);
    const VersionNumber version = publish(*origin, model_);
    expect_served(*neighbour, version, stamp);
    expect_served(*second, version, stamp);
    expect_served(*relay, version, stamp);
  }
  // Only the relay holds anything at the origin.
  EXPECT_EQ(origin->stat().subscribers.size(), 1u);
  EXPECT_FALSE(origin->stat().subscribers[0].serves.empty());
}

TEST_P(RelayTest, BesideItsPublisherARelayForOthersFetches) {
  auto origin = open_origin();
  auto hub = open_hub(host_.path());
  // No channel is asked for, and this host's memory would be the first choice.
  SubscriberOptions options{.model = own_model(), .at = parse_addresses(origin->address())};
  options.lock_memory = false;
  options.relay = hub;
  auto relay = open_subscriber(std::move(options));
  auto leaf = open_subscriber(fetching_from(address_of(*hub)));
  model_.stamp_all(7);
  expect_served(*leaf, publish(*origin, model_), 7);
}

TEST_P(RelayTest, AChainCarriesEveryVersionOn) {
  auto origin = open_origin();
  auto first_hub = open_hub(host_.path());
  auto first = open_relay(origin->address(), first_hub);
  auto second_hub = open_hub(other_host_.path());
  auto second = open_relay(address_of(*first_hub), second_hub);
  auto leaf = open_subscriber(fetching_from(address_of(*second_hub)));
  for (std::uint64_t stamp = 1; stamp <= 6; ++stamp) {
    model_.stamp(stamp % 4, stamp);
    const VersionNumber version = publish(*origin, model_);
    ASSERT_TRUE(leaf->wait_for(version, kPatience));
    const Snapshot snapshot = leaf->snapshot();
    EXPECT_EQ(stamp_of(snapshot, stamp % 4), stamp);
    EXPECT_EQ(snapshot.manifest().digests[0], digest_of(model_.views()[0].data));
  }
  EXPECT_EQ(origin->stat().subscribers.size(), 1u);
}

TEST_P(RelayTest, ARollbackReachesThoseBehindRelays) {
  PublisherOptions options = publisher_options(own_model());
  options.hub_options = {
      .listen = "tcp://127.0.0.1:*", .directory = folder_.path(), .channels = parse_channel_choice(GetParam()).value()};
  options.lock_memory = false;
  options.keep_versions = 8;
  auto origin = open_publisher(std::move(options));
  auto first_hub = open_hub(host_.path());
  auto first = open_relay(origin->address(), first_hub);
  auto second_hub = open_hub(other_host_.path());
  auto second = open_relay(address_of(*first_hub), second_hub);
  auto neighbour = open_subscriber({.model = own_model(), .directory = host_.path()});
  auto leaf = open_subscriber(fetching_from(address_of(*second_hub)));
  VersionNumber version = 0;
  for (std::uint64_t stamp = 1; stamp <= 6; ++stamp) {
    model_.stamp_all(stamp);
    version = publish(*origin, model_);
    expect_served(*leaf, version, stamp);
    expect_served(*neighbour, version, stamp);
  }
  const auto serves = [](Subscriber& subscriber, VersionNumber number) {
    return eventually([&] { return subscriber.snapshot().version() == number; });
  };
  // Longer ago than relays keep versions.
  const auto report = origin->rollback(2);
  ASSERT_TRUE(report) << report.error().message();
  EXPECT_EQ(report->current.version, 2U);
  for (Subscriber* subscriber : {first.get(), second.get(), neighbour.get(), leaf.get()}) {
    ASSERT_TRUE(serves(*subscriber, 2)) << subscriber->status().last_error;
    for (std::uint32_t tensor = 0; tensor < 4; ++tensor) EXPECT_EQ(stamp_of(subscriber->snapshot(), tensor), 2U);
  }
  // A newcomer finds it too.
  auto late = open_subscriber(fetching_from(address_of(*second_hub)));
  ASSERT_TRUE(serves(*late, 2));
  ASSERT_TRUE(eventually([&] { return origin->stat().subscribers.at(0).behind == 0; }));
  ASSERT_TRUE(origin->release());
  ASSERT_TRUE(serves(*leaf, version));
  model_.stamp_all(7);
  expect_served(*leaf, publish(*origin, model_), 7);
  expect_served(*neighbour, version + 1, 7);
}

TEST_P(RelayTest, ARelayThatDiesIsRoutedAround) {
  auto origin = open_origin();
  auto hub = open_hub(host_.path());
  auto relay = open_relay(origin->address(), hub);
  auto leaf = open_subscriber(fetching_from(address_of(*hub) + "," + origin->address()));
  model_.stamp_all(1);
  expect_served(*leaf, publish(*origin, model_), 1);
  EXPECT_EQ(origin->stat().subscribers.size(), 1u) << "the leaf is the relay's";
  relay.reset();
  hub.reset();
  EXPECT_EQ(stamp_of(leaf->snapshot(), 0), 1u);
  model_.stamp_all(2);
  expect_served(*leaf, publish(*origin, model_), 2);
}

TEST_P(RelayTest, WhatANeighbourPinsStaysThoughTheRelayGoesOn) {
  auto origin = open_origin();
  auto relay = open_relay(origin->address(), open_hub(host_.path()));
  auto neighbour = open_subscriber({.model = own_model(), .directory = host_.path()});
  model_.stamp_all(1);
  expect_served(*neighbour, publish(*origin, model_), 1);
  const Snapshot pinned = neighbour->snapshot();
  for (std::uint64_t stamp = 2; stamp <= 9; ++stamp) {
    model_.stamp_all(stamp);
    expect_served(*neighbour, publish(*origin, model_), stamp);
  }
  for (std::uint32_t tensor = 0; tensor < 4; ++tensor) EXPECT_EQ(stamp_of(pinned, tensor), 1u);
  relay.reset();
  for (std::uint32_t tensor = 0; tensor < 4; ++tensor) EXPECT_EQ(stamp_of(pinned, tensor), 1u);
}

TEST_P(RelayTest, ARestartedOriginNumbersAboveWhatTheLeavesHaveSeen) {
  auto hub = open_hub(host_.path());
  auto leaf = open_subscriber(fetching_from(address_of(*hub)));
  VersionNumber last = 0;
  std::unique_ptr<Subscriber> relay;
  {
    auto origin = open_origin();
    relay = open_relay(origin->address(), hub);
    for (std::uint64_t stamp = 1; stamp <= 5; ++stamp) {
      model_.stamp_all(stamp);
      last = publish(*origin, model_);
    }
    ASSERT_TRUE(leaf->wait_for(last, kPatience));
    relay.reset();
  }
  // Another host, which remembers no number; only the leaf does.
  PublisherOptions options{.model = own_model(),
                           .hub_options = {.listen = "tcp://127.0.0.1:*",
                                           .directory = other_host_.path(),
                                           .channels = parse_channel_choice(GetParam()).value()}};
  auto origin = open_publisher(std::move(options));
  relay = open_relay(origin->address(), hub);
  VersionNumber version = 0;
  ASSERT_TRUE(eventually([&] {
    model_.stamp_all(6);
    version = publish(*origin, model_);
    return version > last;
  }));
  expect_served(*leaf, version, 6);
}

TEST_P(RelayTest, AMemberOfAGroupIsToldToFollowThePublisherItself) {
  auto origin = open_origin();
  auto hub = open_hub(host_.path());
  auto relay = open_relay(origin->address(), hub);
  SubscriberOptions options = fetching_from(address_of(*hub));
  options.staged = true;
  auto lost = open_subscriber(options);
  ASSERT_TRUE(eventually(
      [&] { return lost->status().last_error.find("has to follow the publisher itself") != std::string::npos; }));
  options.at = {address_of(*hub), origin->address()};
  auto member = open_subscriber(std::move(options));
  model_.stamp_all(1);
  expect_served(*member, publish(*origin, model_), 1);
  EXPECT_EQ(lost->snapshot().version(), 0u);
}

TEST_F(StreamTest, ARelayMustBeToldWhereToFetchFrom) {
  auto hub = open_publisher_hub({.directory = folder_.path()});
  ASSERT_TRUE(hub);
  SubscriberOptions options = subscriber_options(own_model());
  options.relay = *hub;
  EXPECT_TRUE(is_refused(Subscriber::open(std::move(options)), Code::invalid_argument));
}

TEST_F(StreamTest, ARelayDoesNotTakeALivingPublishersName) {
  auto publisher = open_publisher(publisher_options(own_model()));
  auto hub = open_publisher_hub({.directory = folder_.path()});
  ASSERT_TRUE(hub);
  SubscriberOptions options{.model = own_model(), .at = {publisher->address()}};
  options.relay = *hub;
  EXPECT_TRUE(is_refused(Subscriber::open(std::move(options)), Code::already_exists));
}

}  // namespace
}  // namespace freshet
