#include "tests/transport/model_fixture.h"

namespace freshet {
namespace {

using namespace freshet::testing;

class Stream : public ::testing::Test {
 protected:
  PublisherOptions publisher_options(const std::string& model = "demo") {
    return {.model = model, .hub_options = {.directory = folder_.path()}};
  }
  SubscriberOptions subscriber_options(const std::string& model = "demo") {
    return {.model = model, .directory = folder_.path()};
  }

  TemporaryFolder folder_;
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

TEST_F(Stream, TellsItsState) {
  auto publisher = open_publisher(publisher_options());
  auto subscriber = open_subscriber([&] {
    SubscriberOptions options = subscriber_options();
    options.label = "a \"server\"";
    return options;
  }());
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
  EXPECT_EQ(stat.model_bytes, 4U * 8000U);
  EXPECT_EQ(stat.bytes_published, 4U * 8000U);
  EXPECT_EQ(stat.versions_published, 1U);
  EXPECT_EQ(stat.subscribers.front().label, "a \"server\"");
  EXPECT_EQ(stat.subscribers.front().pid, ::getpid());
  EXPECT_EQ(stat.subscribers.front().held, std::vector<VersionNumber>{version});
  const auto missing = ask_publisher_stat(publisher->address(), "other", kPatience);
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code(), Code::not_found);
}

}  // namespace
}  // namespace freshet
