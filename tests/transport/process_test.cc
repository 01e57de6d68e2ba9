// SPDX-License-Identifier: Apache-2.0
/// Publishers and subscribers in processes of their own, stopped and killed.

#include "tests/support/refused.h"
#include "tests/transport/peer_process.h"

namespace freshet {
namespace {

using namespace freshet::test;

constexpr std::size_t kTensors = 4;
constexpr std::size_t kElements = 16 * 1024;

class Processes : public StreamTest {
 protected:
  std::string stamps(VersionNumber version, std::uint64_t stamp) const {
    std::string line = "version " + std::to_string(version) + " stamps";
    for (std::size_t t = 0; t < kTensors; ++t) line.append(" ").append(std::to_string(stamp));
    return line;
  }

  StampedModel model_{kTensors, kElements};
};

TEST_F(Processes, SubscribersShareOneMapping) {
  auto publisher = open_publisher(publisher_options());
  auto one = PeerProcess::subscriber(folder_.path());
  auto two = PeerProcess::subscriber(folder_.path());
  ASSERT_EQ(one.hear(), "ready");
  ASSERT_EQ(two.hear(), "ready");
  model_.stamp_all(7);
  ASSERT_EQ(publish(*publisher, model_), 1U);
  ASSERT_EQ(one.ask("wait 1"), "version 1");
  ASSERT_EQ(two.ask("wait 1"), "version 1");
  EXPECT_EQ(one.ask("pin"), stamps(1, 7));
  EXPECT_EQ(two.ask("pin"), stamps(1, 7));
  const std::string slabs = one.ask("slabs");
  EXPECT_EQ(slabs, two.ask("slabs"));
  // Some slab, and none of them writable there.
  EXPECT_NE(slabs.find("r--s"), std::string::npos) << slabs;
  EXPECT_EQ(slabs.find("rw-s"), std::string::npos) << slabs;
}

TEST_F(Processes, AStoppedRelayIsGoneAroundWhileWhatItHandedOutIsServed) {
  PublisherOptions options = publisher_options();
  options.hub_options.listen = "tcp://127.0.0.1:*";
  options.hub_options.channels = std::vector{ChannelKind::zmq};
  auto origin = open_publisher(std::move(options));
  const TemporaryFolder host;
  PeerProcess relay({"relay", "demo", host.path(), origin->address(), "zmq"});
  const std::string ready = relay.hear();
  ASSERT_TRUE(ready.starts_with("ready ")) << ready;
  auto neighbour = open_subscriber({.model = "demo", .at = {ready.substr(6), origin->address()}});
  model_.stamp_all(1);
  ASSERT_EQ(publish(*origin, model_), 1U);
  ASSERT_TRUE(neighbour->wait_for(1, kPatience));
  ASSERT_EQ(origin->stat().subscribers.size(), 1U) << "the relay's alone";
  Snapshot pinned = neighbour->snapshot();
  relay.stop();
  model_.stamp_all(2);
  ASSERT_EQ(publish(*origin, model_), 2U);
  ASSERT_TRUE(neighbour->wait_for(2, kPatience));
  EXPECT_EQ(stamp_of(neighbour->snapshot(), 0), 2U);
  EXPECT_EQ(stamp_of(pinned, 0), 1U);
  relay.go_on();
  ASSERT_EQ(relay.ask("wait 2"), "version 2");
  EXPECT_EQ(stamp_of(pinned, 0), 1U) << "it is still held where it came from";
}

TEST_F(Processes, ARestartedPublisherGoesOn) {
  auto subscriber = open_subscriber(subscriber_options());
  {
    auto publisher = PeerProcess::publisher(folder_.path(), kTensors, kElements);
    ASSERT_EQ(publisher.hear(), "ready");
    ASSERT_EQ(publisher.ask("publish 1"), "version 1");
    ASSERT_EQ(publisher.ask("publish 2"), "version 2");
    ASSERT_TRUE(subscriber->wait_for(2, kPatience));
    publisher.kill();
  }
  // The version outlives its publisher.
  const Snapshot before = subscriber->snapshot();
  ASSERT_EQ(before.version(), 2U);
  EXPECT_EQ(stamp_of(before, 0), 2U);
  ASSERT_TRUE(eventually([&] { return !subscriber->status().connected; }));

  auto publisher = PeerProcess::publisher(folder_.path(), kTensors, kElements);
  ASSERT_EQ(publisher.hear(), "ready");
  // Nothing of the new life yet: the old version is served on.
  EXPECT_EQ(subscriber->snapshot().version(), 2U);
  ASSERT_EQ(publisher.ask("publish 3"), "version 3");
  ASSERT_TRUE(subscriber->wait_for(3, kPatience));
  const Snapshot after = subscriber->snapshot();
  EXPECT_EQ(stamp_of(after, 1), 3U);
  EXPECT_EQ(after.manifest().id.sequence, 1U);
  EXPECT_GT(after.manifest().id.incarnation, before.manifest().id.incarnation);
  // The dead one's sockets were cleared away: a door and control are left.
  std::size_t sockets = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder_.path())) sockets += file.is_socket() ? 1 : 0;
  EXPECT_EQ(sockets, 2U);
  // What was pinned through the dead publisher's memory is as it was.
  for (std::uint32_t t = 0; t < kTensors; ++t) EXPECT_EQ(stamp_of(before, t), 2U);
}

TEST_F(Processes, AStoppedSubscriberFindsItsBytesUnchanged) {
  auto publisher = open_publisher(publisher_options());
  auto subscriber = PeerProcess::subscriber(folder_.path());
  ASSERT_EQ(subscriber.hear(), "ready");
  model_.stamp_all(1);
  ASSERT_EQ(publish(*publisher, model_), 1U);
  ASSERT_EQ(subscriber.ask("wait 1"), "version 1");
  ASSERT_EQ(subscriber.ask("pin"), stamps(1, 1));
  subscriber.stop();
  std::uint64_t stamp = 1;
  const auto publish_more = [&](int times) {
    for (int i = 0; i < times; ++i) {
      model_.stamp_all(++stamp);
      ASSERT_EQ(publish(*publisher, model_, {.changed = Changed::all()}), stamp);
    }
  };
  publish_more(50);
  // It is seen to be silent, and what it holds is held for it however long that lasts.
  ASSERT_TRUE(eventually([&] {
    const PublisherStat stat = publisher->stat();
    return stat.subscribers.size() == 1 && stat.subscribers.front().silent;
  }));
  publish_more(50);
  subscriber.go_on();
  EXPECT_EQ(subscriber.ask("check"), stamps(1, 1));
  EXPECT_EQ(subscriber.ask("wait 101"), "version 101");
  EXPECT_EQ(subscriber.ask("check"), stamps(1, 1));
  EXPECT_EQ(subscriber.ask("pin"), stamps(101, 101));
}

TEST_F(Processes, AKilledSubscriberGivesItsMemoryBack) {
  PublisherOptions options = publisher_options();
  // Room for two versions: as long as the subscriber lives and pins, a third has none.
  options.arena_copies = 2;
  options.arena_limit_bytes = 2 * model_.bytes() + model_.bytes() / 2;
  auto publisher = open_publisher(std::move(options));
  auto subscriber = PeerProcess::subscriber(folder_.path());
  ASSERT_EQ(subscriber.hear(), "ready");
  model_.stamp_all(1);
  ASSERT_EQ(publish(*publisher, model_), 1U);
  ASSERT_EQ(subscriber.ask("wait 1"), "version 1");
  ASSERT_EQ(subscriber.ask("pin"), stamps(1, 1));
  const PublishOptions all{.changed = Changed::all()};
  ASSERT_EQ(publish(*publisher, model_, all), 2U);
  ASSERT_EQ(subscriber.ask("wait 2"), "version 2");
  EXPECT_TRUE(is_refused(publisher->publish(model_.views(), all), Code::out_of_space));
  subscriber.kill();
  ASSERT_TRUE(eventually([&] { return publisher->stat().subscribers.empty(); }));
  for (VersionNumber version = 3; version < 10; ++version) {
    model_.stamp_all(version);
    ASSERT_EQ(publish(*publisher, model_, all), version);
  }
  EXPECT_EQ(publisher->stat().versions_skipped, 1U);
}

TEST_F(Processes, ASecondPublisherIsToldWhoHasTheName) {
  auto publisher = PeerProcess::publisher(folder_.path(), kTensors, kElements);
  ASSERT_EQ(publisher.hear(), "ready");
  EXPECT_TRUE(is_refused(Publisher::open(publisher_options()), Code::already_exists, std::to_string(publisher.pid())));
  publisher.kill();
  EXPECT_TRUE(Publisher::open(publisher_options()));
}

}  // namespace
}  // namespace freshet
