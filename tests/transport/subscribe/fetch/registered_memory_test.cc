// SPDX-License-Identifier: Apache-2.0
/// Arenas are made known to the channels that fetch from them and into them: each slab once, before anything is sent
/// from it, and not longer than it is there.

#include "tests/transport/channel/fake_channel.h"
#include "tests/transport/model_fixture.h"
#include "transport/subscribe/fetch/version_fetcher.h"
#include "transport/zmq/hub/publisher_hub.h"

namespace freshet {
namespace {

using namespace freshet::test;

class RegisteredMemory : public StreamTest {
 protected:
  static std::uint64_t registered(PublisherHub& hub) {
    std::uint64_t bytes = 0;
    for (const channel::ChannelStat& stat : hub.channels().stats()) bytes += stat.bytes_registered;
    return bytes;
  }
};

TEST_F(RegisteredMemory, APublishersIsUntilItIsClosed) {
  PublisherOptions options = publisher_options();
  options.hub_options.listen = "tcp://127.0.0.1:*";
  options.hub_options.channels = std::vector{ChannelKind::ucx};
  auto hub = open_publisher_hub(options.hub_options);
  if (!hub) GTEST_SKIP() << hub.error().message();
  options.hub = *hub;
  options.lock_memory = false;
  StampedModel model(4, 100'000);
  auto publisher = open_publisher(options);
  EXPECT_EQ(registered(**hub), 0u);
  for (int version = 0; version < 3; ++version) {
    ASSERT_GT(publish(*publisher, model), 0u);
    EXPECT_EQ(registered(**hub), publisher->stat().arena_bytes);
  }
  EXPECT_GT(registered(**hub), 0u);
  publisher.reset();
  EXPECT_EQ(registered(**hub), 0u) << "it is unmapped by now";
}

/// A client that only notes what it is told of.
class NotingClient final : public channel::ChannelClient {
 public:
  explicit NotingClient(std::vector<Bytes>& noted) : noted_(noted) {}
  channel::ChannelKind kind() const override { return channel::ChannelKind::ucx; }
  Status fetch(channel::FetchRequest, channel::FetchSink&) override { return fail(Code::unavailable, "nothing here"); }
  void cancel(std::uint64_t) override {}
  int descriptor() const override { return -1; }
  Result<bool> progress(std::chrono::microseconds) override { return false; }
  std::uint64_t bytes_received() const override { return 0; }
  Status register_memory(Bytes memory) override {
    noted_.push_back(memory);
    return {};
  }

 private:
  std::vector<Bytes>& noted_;
};

TEST_F(RegisteredMemory, AFetchersIsOnceForEachClient) {
  std::vector<Bytes> noted;
  detail::VersionFetcher::Options options;
  options.arena = {.name = "demo", .copies = 1, .lock_memory = false};
  options.openers[channel::ChannelKind::ucx] =
      [&noted](const std::string&) -> Result<std::unique_ptr<channel::ChannelClient>> {
    return std::make_unique<NotingClient>(noted);
  };
  detail::VersionFetcher fetcher(options);
  const protocol::ChannelOffer offer{.kind = channel::ChannelKind::ucx, .address = "there"};
  ASSERT_TRUE(fetcher.open(1, offer));
  EXPECT_TRUE(noted.empty());
  ChangingModel model({100'000, 5});
  static_cast<void>(fetcher.begin({.manifest = model.next({0, 1}), .session = 1, .lease = 1}, nullptr, Time{}));
  const auto slabs = fetcher.arena()->slab_memory();
  ASSERT_FALSE(slabs.empty());
  ASSERT_EQ(noted.size(), slabs.size());
  EXPECT_EQ(noted[0].data(), slabs[0].data());
  EXPECT_EQ(noted[0].size(), slabs[0].size());
  ASSERT_TRUE(fetcher.open(2, offer));
  EXPECT_EQ(noted.size(), 2 * slabs.size()) << "the next client does not know it";
}

}  // namespace
}  // namespace freshet
