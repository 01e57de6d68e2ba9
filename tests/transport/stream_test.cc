// SPDX-License-Identifier: Apache-2.0
/// A publisher and its subscribers in one process: what is published is what is served.

#include <cmath>
#include <filesystem>
#include <limits>

#include "tests/support/refused.h"
#include "tests/transport/model_fixture.h"
#include "transport/directory/host_directory.h"

namespace freshet {
namespace {

using namespace freshet::test;

class Stream : public StreamTest {
 protected:
  StampedModel model_{4, 1000};
};

TEST_F(Stream, ServesWhatWasPublished) {
  auto publisher = open_publisher(publisher_options());
  auto subscriber = open_subscriber(subscriber_options());
  EXPECT_FALSE(subscriber->snapshot());
  for (std::uint64_t stamp = 1; stamp <= 20; ++stamp) {
    model_.stamp_all(stamp);
    const VersionNumber version = publish(*publisher, model_, {.step = stamp});
    ASSERT_EQ(version, stamp);
    const Status came = subscriber->wait_for(version, kPatience);
    ASSERT_TRUE(came) << came.error().message();
    const Snapshot snapshot = subscriber->snapshot();
    ASSERT_EQ(snapshot.version(), version);
    EXPECT_EQ(snapshot.manifest().step, stamp);
    for (std::uint32_t tensor = 0; tensor < 4; ++tensor) EXPECT_EQ(stamp_of(snapshot, tensor), stamp);
  }
}

TEST_F(Stream, APublisherIsFoundAgainWhoseFolderWasRemoved) {
  const std::string run = folder_ / "run";
  const PublisherOptions options{.model = "demo", .hub_options = {.directory = run}};
  auto publisher = open_publisher(options);
  auto early = open_subscriber({.model = "demo", .directory = run});
  model_.stamp_all(1);
  ASSERT_EQ(publish(*publisher, model_), 1U);
  ASSERT_TRUE(early->wait_for(1, kPatience));
  // With all that is in it: at logout, or as too old.
  std::filesystem::remove_all(run);
  ASSERT_TRUE(eventually([&] { return HostDirectory::open(run)->get()->lookup("demo").has_value(); }));
  auto late = open_subscriber({.model = "demo", .directory = run});
  ASSERT_TRUE(late->wait_for(1, kPatience));
  model_.stamp_all(2);
  ASSERT_EQ(publish(*publisher, model_), 2U);
  ASSERT_TRUE(late->wait_for(2, kPatience));
  ASSERT_TRUE(early->wait_for(2, kPatience));
  EXPECT_EQ(Publisher::open(options).error().code(), Code::already_exists);
  publisher.reset();
  // The successor counts on, and whoever was there before the folder went finds it.
  publisher = open_publisher(options);
  model_.stamp_all(3);
  ASSERT_EQ(publish(*publisher, model_), 3U);
  ASSERT_TRUE(early->wait_for(3, kPatience));
}

TEST_F(Stream, AVersionHasTensors) {
  auto publisher = open_publisher(publisher_options());
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(is_refused(publisher->publish({}, {.sync = true}), Code::invalid_argument));
    model_.stamp_all(1);
    EXPECT_EQ(publish(*publisher, model_), i + 1U) << "a refused publish takes no number";
  }
}

TEST_F(Stream, ALateJoinerGetsTheNewestAtOnce) {
  auto publisher = open_publisher(publisher_options());
  for (std::uint64_t stamp = 1; stamp <= 5; ++stamp) {
    model_.stamp_all(stamp);
    publish(*publisher, model_);
  }
  auto subscriber = open_subscriber(subscriber_options());
  ASSERT_TRUE(subscriber->wait_for(1, kPatience));
  EXPECT_EQ(subscriber->snapshot().version(), 5U);
  EXPECT_EQ(subscriber->status().updates, 1U);
}

TEST_F(Stream, ASubscriberWaitsForItsPublisher) {
  auto subscriber = open_subscriber(subscriber_options());
  EXPECT_EQ(subscriber->wait_for(1, Duration(0)).error().code(), Code::timed_out);
  auto publisher = open_publisher(publisher_options());
  model_.stamp_all(3);
  const VersionNumber version = publish(*publisher, model_);
  ASSERT_TRUE(subscriber->wait_for(version, kPatience));
  EXPECT_EQ(stamp_of(subscriber->snapshot(), 2), 3U);
}

TEST_F(Stream, AVersionOutlivesItsPublisher) {
  auto subscriber = open_subscriber(subscriber_options());
  {
    auto publisher = open_publisher(publisher_options());
    model_.stamp_all(9);
    ASSERT_TRUE(subscriber->wait_for(publish(*publisher, model_), kPatience));
  }
  ASSERT_TRUE(eventually([&] { return !subscriber->status().connected; }));
  EXPECT_EQ(stamp_of(subscriber->snapshot(), 0), 9U);
  EXPECT_EQ(stamp_of(subscriber->snapshot(), 3), 9U);
}

TEST_F(Stream, TwoModelsShareOneHub) {
  auto hub = open_publisher_hub({.directory = folder_.path()});
  ASSERT_TRUE(hub) << hub.error().message();
  StampedModel other(3, 50, "head");
  PublisherOptions first = publisher_options("demo");
  PublisherOptions second = publisher_options("demo-2");
  first.hub = second.hub = *hub;
  auto demo = open_publisher(std::move(first));
  auto demo_2 = open_publisher(std::move(second));
  EXPECT_EQ(demo->address(), demo_2->address());
  auto reader = open_subscriber(subscriber_options("demo"));
  auto reader_2 = open_subscriber(subscriber_options("demo-2"));
  for (std::uint64_t stamp = 1; stamp <= 10; ++stamp) {
    model_.stamp_all(stamp);
    other.stamp_all(100 + stamp);
    ASSERT_TRUE(reader->wait_for(publish(*demo, model_), kPatience));
    ASSERT_TRUE(reader_2->wait_for(publish(*demo_2, other), kPatience));
    EXPECT_EQ(stamp_of(reader->snapshot(), 1), stamp);
    EXPECT_EQ(stamp_of(reader_2->snapshot(), 1), 100 + stamp);
  }
  // One goes, the other stays.
  demo.reset();
  ASSERT_TRUE(eventually([&] { return !reader->status().connected; }));
  ASSERT_TRUE(reader_2->wait_for(publish(*demo_2, other), kPatience));
}

TEST_F(Stream, ReachesAPublisherByItsLoopbackAddress) {
  PublisherOptions options = publisher_options();
  options.hub_options.listen = "tcp://127.0.0.1:*";
  auto publisher = open_publisher(std::move(options));
  EXPECT_EQ(publisher->address().rfind("tcp://127.0.0.1:", 0), 0U) << publisher->address();
  auto subscriber = open_subscriber({.model = "demo", .at = {publisher->address()}});
  model_.stamp_all(4);
  ASSERT_TRUE(subscriber->wait_for(publish(*publisher, model_), kPatience));
  EXPECT_EQ(stamp_of(subscriber->snapshot(), 0), 4U);
}

TEST_F(Stream, ListensOnThisHostAlone) {
  for (const char* address : {"tcp://0.0.0.0:7070", "tcp://*:7070", "tcp://10.0.0.1:7070", "tcp://[::]:7070",
                              "tcp://127.0.0.1", "tcp://127.0.0.1:0x10", "ipc://relative", "inproc://a", "garbage"}) {
    PublisherOptions options = publisher_options();
    options.hub_options.listen = address;
    const auto publisher = Publisher::open(std::move(options));
    ASSERT_FALSE(publisher) << address;
    EXPECT_EQ(publisher.error().code(), Code::invalid_argument) << address;
    EXPECT_NE(publisher.error().message().find(std::string(address).substr(6)), std::string::npos)
        << publisher.error().message();
    EXPECT_FALSE(Subscriber::open({.model = "demo", .at = {address}}));
  }
}

TEST_F(Stream, WorksInAFolderDeeperThanASocketPath) {
  std::string deep = folder_.path();
  for (int i = 0; i < 6; ++i) {
    deep += "/a-folder-with-a-rather-long-name";
    std::filesystem::create_directory(deep);
  }
  std::filesystem::permissions(deep, std::filesystem::perms::owner_all);
  ASSERT_GT(deep.size(), 200U);
  auto publisher = open_publisher({.model = "demo", .hub_options = {.directory = deep}});
  auto subscriber = open_subscriber({.model = "demo", .directory = deep});
  ASSERT_TRUE(subscriber->wait_for(publish(*publisher, model_), kPatience));
}

TEST_F(Stream, KeepsMetricsThatAreNoNumbers) {
  auto publisher = open_publisher(publisher_options());
  auto subscriber = open_subscriber(subscriber_options());
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  const VersionNumber version =
      publish(*publisher, model_, {.metrics = {{"loss", nan}, {"scale", -infinity}}, .tags = {{"host", "a"}}});
  ASSERT_TRUE(subscriber->wait_for(version, kPatience));
  const Snapshot snapshot = subscriber->snapshot();
  const Metrics& metrics = snapshot.manifest().metrics;
  ASSERT_EQ(metrics.size(), 2U);
  EXPECT_TRUE(std::isnan(metrics[0].second));
  EXPECT_EQ(metrics[1].second, -infinity);
}

TEST_F(Stream, AnnotationsOutOfBoundsAreRefused) {
  auto publisher = open_publisher(publisher_options());
  const auto refused = [&](PublishOptions options) {
    const auto receipt = publisher->publish(model_.views(), std::move(options));
    return !receipt && receipt.error().code() == Code::invalid_argument;
  };
  EXPECT_TRUE(refused({.metrics = Metrics(kMetricsMax + 1)}));
  EXPECT_TRUE(refused({.metrics = {{"loss", 1}, {"loss", 2}}}));
  EXPECT_TRUE(refused({.tags = {{"host", std::string(kTagValueBytesMax + 1, 'x')}}}));
  EXPECT_EQ(publish(*publisher, model_), 1U);
}

TEST_F(Stream, TheLineageIsInTheManifests) {
  auto publisher = open_publisher(publisher_options());
  auto subscriber = open_subscriber(every_options());
  ASSERT_TRUE(eventually([&] { return subscriber->status().connected; }));
  publish(*publisher, model_);
  model_.stamp(2, 5);
  publish(*publisher, model_, {.changed = Changed::only({2})});
  model_.stamp(1, 6);
  publish(*publisher, model_, {.changed = Changed::find()});
  std::vector<Manifest> manifests;
  for (VersionNumber version = 1; version <= 3; ++version) {
    const auto delivery = subscriber->next(kPatience);
    ASSERT_TRUE(delivery) << delivery.error().message();
    manifests.push_back(delivery->snapshot.manifest());
    EXPECT_EQ(delivery->snapshot.version(), version);
    EXPECT_EQ(delivery->update.tensors_fetched, version == 1 ? 4U : 1U);
  }
  EXPECT_FALSE(manifests[0].ancestor);
  EXPECT_EQ(manifests[1].ancestor, manifests[0].id);
  EXPECT_EQ(manifests[2].ancestor_name.number, 2U);
  EXPECT_EQ(manifests[1].owners.changed_since(manifests[0].owners), std::vector<std::uint32_t>{2});
  EXPECT_EQ(manifests[2].owners.changed_since(manifests[1].owners), std::vector<std::uint32_t>{1});
  for (std::uint32_t t = 0; t < 4; ++t) EXPECT_EQ(manifests[2].digests[t], digest_of(model_.views()[t].data));
}

/// Its incarnation grows, also where the host's clock is behind that of the host that it comes from.
TEST_F(Stream, AResumedRunNamesItsSegmentsAnew) {
  auto resumed = std::make_shared<Manifest>();
  resumed->name = {.model = "demo", .number = 7};
  resumed->id = {.run = {1, 2}, .incarnation = std::uint64_t{1} << 61, .sequence = 4};
  std::vector<TensorSpec> specs;
  for (const TensorView& view : model_.views()) specs.push_back(view.spec);
  resumed->architecture = *Architecture::guess_chain(specs);
  resumed->owners = OwnerMap::all_written_by(resumed->id, specs.size());
  resumed->digests.resize(specs.size());
  PublisherOptions options = publisher_options();
  options.resume_from = resumed;
  auto publisher = open_publisher(std::move(options));
  auto subscriber = open_subscriber(subscriber_options());
  const VersionNumber version = publish(*publisher, model_);
  EXPECT_EQ(version, 8U);
  ASSERT_TRUE(subscriber->wait_for(version, kPatience));
  const Snapshot snapshot = subscriber->snapshot();
  EXPECT_EQ(snapshot.manifest().id.run, resumed->id.run);
  EXPECT_GT(snapshot.manifest().id.incarnation, resumed->id.incarnation);
}

TEST_F(Stream, NumbersThatLeaveNoneAreRefused) {
  PublisherOptions floor = publisher_options();
  floor.number_floor = ~VersionNumber{0};
  EXPECT_TRUE(is_refused(Publisher::open(std::move(floor)), Code::invalid_argument));
  auto resumed = std::make_shared<Manifest>();
  resumed->name = {.model = "demo", .number = ~VersionNumber{0}};
  resumed->id = {.run = {1, 2}, .incarnation = 1, .sequence = 4};
  resumed->architecture = *Architecture::guess_chain({model_.views()[0].spec});
  resumed->owners = OwnerMap::all_written_by(resumed->id, 1);
  resumed->digests.resize(1);
  PublisherOptions options = publisher_options();
  options.resume_from = resumed;
  EXPECT_TRUE(is_refused(Publisher::open(std::move(options)), Code::invalid_argument));
}

TEST_F(Stream, WhoeverIsServedAVersionFindsItInStat) {
  auto publisher = open_publisher(publisher_options());
  auto subscriber = open_subscriber(subscriber_options());
  for (int i = 0; i < 100; ++i) {
    const auto receipt = publisher->publish(model_.views(), PublishOptions{});
    ASSERT_TRUE(receipt) << receipt.error().message();
    const VersionNumber version = receipt->version;
    ASSERT_TRUE(subscriber->wait_for(version, kPatience));
    const PublisherStat stat = publisher->stat();
    ASSERT_EQ(stat.newest, version);
    ASSERT_EQ(stat.current.version, version);
  }
}

TEST_F(Stream, TellsItsState) {
  auto publisher = open_publisher(publisher_options());
  SubscriberOptions options = subscriber_options();
  options.label = "a \"server\"";
  auto subscriber = open_subscriber(std::move(options));
  const VersionNumber version = publish(*publisher, model_);
  ASSERT_TRUE(subscriber->wait_for(version, kPatience));
  ASSERT_TRUE(eventually([&] {
    const auto stats = ask_publisher_stat(publisher->address(), "demo", kPatience);
    return stats && stats->size() == 1 && stats->front().subscribers.size() == 1 &&
           stats->front().subscribers.front().serving == version;
  }));
  const auto stats = ask_publisher_stat(publisher->address(), "", kPatience);
  ASSERT_TRUE(stats) << stats.error().message();
  const PublisherStat& stat = stats->front();
  EXPECT_EQ(stat.model, "demo");
  EXPECT_EQ(stat.newest, version);
  EXPECT_EQ(stat.model_bytes, model_.bytes());
  EXPECT_EQ(stat.bytes_published, model_.bytes());
  EXPECT_EQ(stat.versions_published, 1U);
  EXPECT_EQ(stat.subscribers.front().label, "a \"server\"");
  EXPECT_EQ(stat.subscribers.front().pid, ::getpid());
  EXPECT_EQ(stat.subscribers.front().held, std::vector<VersionNumber>{version});
  EXPECT_TRUE(is_refused(ask_publisher_stat(publisher->address(), "other", kPatience), Code::not_found));
}

TEST_F(Stream, OptionsThatMakeNoSenseAreRefused) {
  const auto refused = [](auto opened) { return !opened && opened.error().code() == Code::invalid_argument; };
  EXPECT_TRUE(refused(Publisher::open(publisher_options("no/slash"))));
  PublisherOptions copies = publisher_options();
  copies.arena_copies = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(refused(Publisher::open(std::move(copies))));
  EXPECT_TRUE(refused(Subscriber::open(subscriber_options(""))));
  SubscriberOptions pins = subscriber_options();
  pins.pins_max = 0;
  EXPECT_TRUE(refused(Subscriber::open(std::move(pins))));
  auto subscriber = open_subscriber(subscriber_options());
  EXPECT_EQ(subscriber->next(Duration(0)).error().code(), Code::failed_precondition);
}

}  // namespace
}  // namespace freshet
