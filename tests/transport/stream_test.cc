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

}  // namespace
}  // namespace freshet
