// SPDX-License-Identifier: Apache-2.0
#include "transport/channel/skeleton/client.h"

#include <gtest/gtest.h>

#include <memory>

#include "tests/conformance/channel_conformance.h"

namespace freshet::channel {
namespace {

/// A connection to a server that was stopped.
class SilentConnection final : public Connection {
 public:
  explicit SilentConnection(int& pings) : pings_(pings) {}
  void send(Say what, std::uint64_t, Bytes) override { pings_ += what == Say::ping; }
  Result<bool> receive(Client&, Time) override { return false; }
  Result<bool> arm() override { return true; }

 private:
  int& pings_;
};

TEST(ChannelClient, ASilentServerIsFoundOutByWhoGoesByTheDescriptorAlone) {
  int pings = 0;
  const auto client = Client::open(std::make_unique<SilentConnection>(pings), {.address = "nowhere"});
  ASSERT_TRUE(client) << client.error().message();
  CollectingSink sink;
  ASSERT_TRUE((*client)->fetch({.request = 1, .pieces = {{.tensor = 0, .offset = 0, .bytes = 8}}}, sink));
  EXPECT_FALSE(drive({client->get()}, [&] { return pings > 100; })) << "it asks for ever";
  ASSERT_NE(sink.ended(1), nullptr);
  EXPECT_EQ(sink.ended(1)->error().code(), Code::unavailable);
  EXPECT_GT(pings, 0);
}

}  // namespace
}  // namespace freshet::channel
