// SPDX-License-Identifier: Apache-2.0
/// Publishers that are killed or stopped while a version is on its way to a subscriber that fetches.

#include "tests/transport/model_fixture.h"
#include "tests/transport/peer_process.h"
#include "transport/option_text.h"
#include "transport/subscribe/fetch/channel_openers.h"

namespace freshet {
namespace {

using namespace freshet::test;

constexpr std::size_t kLargeTensors = 8;
constexpr std::size_t kLargeElements = std::size_t{1} << 20;  // 64 MiB in all: it takes a while.

class BrokenFetch : public StreamTest, public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    const auto kind = parse_channel(GetParam());
    ASSERT_TRUE(kind);
    if (!channel_openers({}, std::nullopt).contains(**kind)) GTEST_SKIP() << "there is no channel " << GetParam();
    publisher_ = start_publisher();
    SubscriberOptions options = subscriber_options();
    options.channel = *kind;
    options.lock_memory = false;
    subscriber_ = open_subscriber(std::move(options));
    ASSERT_EQ(publisher_->ask("publish 1"), "version 1");
    ASSERT_TRUE(subscriber_->wait_for(1, kPatience));
  }
  std::unique_ptr<PeerProcess> start_publisher() {
    // Handed over by elision: a process is not to be copied.
    std::unique_ptr<PeerProcess> publisher(
        new PeerProcess(PeerProcess::remote_publisher(folder_.path(), kLargeTensors, kLargeElements, GetParam())));
    EXPECT_EQ(publisher->hear(), "ready");
    return publisher;
  }
  /// The stamp of the whole of what is served; 0 when it is torn.
  std::uint64_t served_stamp() {
    const Snapshot snapshot = subscriber_->snapshot();
    const auto first = stamp_of(snapshot, 0);
    for (std::uint32_t tensor = 1; tensor < kLargeTensors; ++tensor) {
      if (stamp_of(snapshot, tensor) != first) return 0;
    }
    return first.value_or(0);
  }

  std::unique_ptr<PeerProcess> publisher_;
  std::unique_ptr<Subscriber> subscriber_;
};

INSTANTIATE_TEST_SUITE_P(Channels, BrokenFetch, ::testing::Values("ucx", "zmq"),
                         [](const auto& kind) { return std::string(kind.param); });

TEST_P(BrokenFetch, APublisherKilledOnTheWayCostsNothingThatIsServed) {
  for (std::uint64_t stamp = 2; stamp <= 6; stamp += 2) {
    publisher_->say("publish " + std::to_string(stamp));
    ASSERT_TRUE(eventually([&] { return subscriber_->status().newest_known > subscriber_->status().serving; }));
    publisher_->kill();
    EXPECT_NE(served_stamp(), 0u);
    publisher_ = start_publisher();
    const std::string line = publisher_->ask("publish " + std::to_string(stamp + 1));
    ASSERT_EQ(line.rfind("version ", 0), 0u) << line;
    const Status came = subscriber_->wait_for(std::stoul(line.substr(8)), kPatience);
    ASSERT_TRUE(came) << came.error().message();
    EXPECT_EQ(served_stamp(), stamp + 1);
  }
}

TEST_P(BrokenFetch, AStoppedPublisherIsWaitedForAndThenFetchedFrom) {
  publisher_->say("publish 2");
  ASSERT_TRUE(eventually([&] { return subscriber_->status().newest_known >= 2; }));
  publisher_->stop();
  ASSERT_TRUE(eventually([&] { return !subscriber_->status().connected; }));
  EXPECT_NE(served_stamp(), 0u);
  publisher_->go_on();
  const Status came = subscriber_->wait_for(2, kPatience);
  ASSERT_TRUE(came) << came.error().message();
  EXPECT_EQ(served_stamp(), 2u);
}

}  // namespace
}  // namespace freshet
