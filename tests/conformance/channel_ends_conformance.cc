// SPDX-License-Identifier: Apache-2.0
/// The part of the channels' conformance suite about how things end: in the middle, mostly.

#include <poll.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/conformance/channel_conformance.h"
#include "tests/support/answering_process.h"

namespace freshet::channel {

TEST_P(ChannelConformance, ACancelledRequestIsWrittenNoMore) {
  serve({kLarge, kMiB});
  const auto client = connect();
  ASSERT_NE(client, nullptr);
  CollectingSink sink;
  const FetchRequest cancelled = request_for(1, {whole(0), whole(1)});
  const FetchRequest behind = request_for(2, {whole(1)});
  begin(*client, cancelled, sink);
  ASSERT_TRUE(client->fetch(behind, sink));
  client->cancel(cancelled.request);
  ASSERT_TRUE(drive({client.get()}, [&] { return sink.ended(cancelled.request) != nullptr; }));
  ASSERT_FALSE(*sink.ended(cancelled.request));
  EXPECT_EQ(sink.ended(cancelled.request)->error().code(), Code::cancelled);
  sink.spoil(cancelled.request);
  // The one behind it comes, and so would whatever still were on its way.
  ASSERT_TRUE(drive({client.get()}, [&] { return sink.ended(behind.request) != nullptr; }));
  expect_arrived(sink, behind);
  expect_fetched(*client, request_for(3, {whole(0)}));
  EXPECT_TRUE(sink.is_spoilt(cancelled.request)) << "memory of a cancelled request was written";
  EXPECT_TRUE(source_->wait_until_open(0));
  client->cancel(cancelled.request);
  client->cancel(777);
}

TEST_P(ChannelConformance, ARequestCancelledAtOnce) {
  serve({kLarge});
  const auto client = connect();
  ASSERT_NE(client, nullptr);
  CollectingSink sink;
  ASSERT_TRUE(client->fetch(request_for(1, {whole(0)}), sink));
  client->cancel(1);
  ASSERT_TRUE(drive({client.get()}, [&] { return sink.ended(1) != nullptr; }));
  EXPECT_EQ(sink.ended(1)->error().code(), Code::cancelled);
  expect_fetched(*client, request_for(2, {whole(0)}));
}

TEST_P(ChannelConformance, ADestroyedClientIsWrittenNoMore) {
  serve({kLarge});
  const auto other = connect();
  ASSERT_NE(other, nullptr);
  CollectingSink sink;
  {
    const auto client = connect();
    ASSERT_NE(client, nullptr);
    begin(*client, request_for(1, {whole(0)}), sink);
  }
  EXPECT_EQ(sink.ended(1), nullptr) << "it was to end without a word";
  sink.spoil(1);
  EXPECT_TRUE(source_->wait_until_open(0));
  expect_fetched(*other, request_for(2, {whole(0)}));
  EXPECT_TRUE(sink.is_spoilt(1));
}

// Two are being made; what waits behind them is given up with its fetch.
TEST_P(ChannelConformance, DeltasOfCancelledFetchesAreNotKept) {
  serve({kMiB});
  const auto client = connect();
  ASSERT_NE(client, nullptr);
  source_->hold_deltas(true);
  constexpr std::uint64_t kFetches = 100;
  CollectingSink sink;
  for (std::uint64_t number = 1; number <= kFetches; ++number) {
    ASSERT_TRUE(client->fetch(request_for(number, {with_base(0)}), sink));
    ASSERT_TRUE(drive({client.get()}, [&] { return source_->opened() == number; }));
    client->cancel(number);
    ASSERT_TRUE(drive({client.get()}, [&] { return sink.ended(number) != nullptr; }));
  }
  EXPECT_LE(source_->open_now(), kRequestsInFlightMax);
  source_->hold_deltas(false);
  expect_fetched(*client, request_for(kFetches + 1, {with_base(0)}));
}

TEST_P(ChannelConformance, ADestroyedServerEndsEveryRequest) {
  serve({kLarge, kMiB});
  const auto client = connect();
  ASSERT_NE(client, nullptr);
  CollectingSink sink;
  begin(*client, request_for(1, {whole(0)}), sink);
  ASSERT_TRUE(client->fetch(request_for(2, {whole(1)}), sink));
  server_.reset();
  EXPECT_EQ(source_->open_now(), 0u);
  EXPECT_FALSE(drive({client.get()}, [] { return false; })) << "the connection should be dead";
  for (const std::uint64_t number : {1, 2}) {
    ASSERT_NE(sink.ended(number), nullptr);
    EXPECT_FALSE(*sink.ended(number));
  }
  sink.spoil(1);
  EXPECT_FALSE(client->progress(std::chrono::milliseconds(1)));
  EXPECT_FALSE(client->fetch(request_for(3, {whole(1)}), sink));
  EXPECT_TRUE(sink.is_spoilt(1));
  EXPECT_EQ(sink.faults(), "");
}

TEST_P(ChannelConformance, WhoIsCutOffEndsAndOthersGoOn) {
  serve({kLarge, kMiB});
  constexpr LeaseId kOtherLease = 55;
  constexpr protocol::SessionId kOtherSession = 66;
  source_->grant(kOtherLease, kOtherSession);
  const auto client = connect();
  const auto other = connect();
  ASSERT_NE(client, nullptr);
  ASSERT_NE(other, nullptr);
  CollectingSink sink;
  CollectingSink other_sink;
  FetchRequest other_request = request_for(1, {whole(0), whole(1)});
  other_request.lease = kOtherLease;
  other_request.session = kOtherSession;
  // Both connections stand, so that what follows goes side by side.
  expect_fetched(*client, request_for(0, {whole(1)}));
  FetchRequest small_request = other_request;
  small_request.request = 0;
  small_request.pieces = {whole(1)};
  expect_fetched(*other, small_request);
  // Side by side: a client that is not driven for seconds is as good as dead to its server.
  ASSERT_TRUE(client->fetch(request_for(1, {whole(0)}), sink));
  ASSERT_TRUE(other->fetch(other_request, other_sink));
  ASSERT_TRUE(drive({client.get(), other.get()}, [&] { return sink.begun(1) && other_sink.begun(1); }));
  ASSERT_EQ(source_->open_now(), 2u) << "too small to be stopped in the middle";
  server_->cut_off(12345);  // Nobody's.
  source_->revoke(MemorySource::kLease);
  server_->cut_off(MemorySource::kSession);
  EXPECT_TRUE(source_->wait_until_open(1)) << "though its client did nothing";
  EXPECT_TRUE(drive({other.get()}, [&] { return other_sink.ended(1) != nullptr; }));
  expect_arrived(other_sink, other_request);
  EXPECT_FALSE(drive({client.get()}, [] { return false; })) << "the connection should be dead";
  ASSERT_NE(sink.ended(1), nullptr);
  EXPECT_FALSE(*sink.ended(1));
}

/// A peer that died or stands still in the middle of a fetch.
class LostPeer {
 public:
  /// Ends when the peer's fetch has begun.
  explicit LostPeer(const std::vector<std::string>& command) : process_(command) {
    begun_ = process_.hear() == "begun";
  }
  bool begun() const { return begun_; }
  test::AnsweringProcess& process() { return process_; }

 private:
  test::AnsweringProcess process_;
  bool begun_ = false;
};

TEST_P(ChannelConformance, AKilledClientIsLetGoAndOthersGoOn) {
  serve({kLarge, kMiB});
  const auto other = connect();
  ASSERT_NE(other, nullptr);
  LostPeer peer(peer_command(0));
  ASSERT_TRUE(peer.begun());
  EXPECT_EQ(source_->open_now(), 1u);
  peer.process().kill();
  expect_fetched(*other, request_for(1, {whole(0), whole(1)}));
  EXPECT_TRUE(source_->wait_until_open(0, 5 * kPeerSilence));
}

TEST_P(ChannelConformance, AStoppedClientIsLetGoAndOthersGoOn) {
  serve({kLarge, kMiB});
  const auto other = connect();
  ASSERT_NE(other, nullptr);
  LostPeer peer(peer_command(0));
  ASSERT_TRUE(peer.begun());
  peer.process().stop();
  std::uint64_t number = 0;
  // As long as it lasts, nobody else notices.
  const Time deadline = system_clock().now() + 5 * kPeerSilence;
  while (!source_->wait_until_open(0, std::chrono::milliseconds(1))) {
    ASSERT_LT(system_clock().now(), deadline) << "a stopped client holds its fetch for ever";
    expect_fetched(*other, request_for(++number, {whole(1)}));
  }
  EXPECT_GT(number, 0u);
  // When it wakes it learns that it is too late.
  peer.process().go_on();
  peer.process().say("go on");
  EXPECT_EQ(peer.process().hear().substr(0, 6), "failed");
  expect_fetched(*other, request_for(++number, {whole(0)}));
}

TEST_P(ChannelConformance, AClientThatPausesIsServedToTheEnd) {
  serve({kLarge});
  LostPeer peer(peer_command(0));
  ASSERT_TRUE(peer.begun());
  peer.process().say("go on");
  EXPECT_EQ(peer.process().hear(), "done");
}

TEST_P(ChannelConformance, AClientThatNobodyDroveForLongIsServed) {
  serve({kMiB});
  const auto client = connect();
  ASSERT_NE(client, nullptr);
  // For longer than a server may be silent; it was never asked anything.
  EXPECT_FALSE(source_->wait_until_open(1, kPeerSilence + std::chrono::milliseconds(200)));
  expect_fetched(*client, request_for(1, {whole(0)}));
}

TEST_P(ChannelConformance, NobodyThere) {
  serve({kMiB});
  const std::string address = server_->address();
  server_.reset();
  auto client = GetParam().open_client(address);
  if (client) {
    CollectingSink sink;
    ASSERT_TRUE((*client)->fetch(request_for(1, {whole(0)}), sink));
    EXPECT_FALSE(drive({client->get()}, [] { return false; })) << "the connection should be dead";
    ASSERT_NE(sink.ended(1), nullptr);
    EXPECT_FALSE(*sink.ended(1));
    EXPECT_EQ(sink.faults(), "");
  } else {
    EXPECT_EQ(client.error().code(), Code::unavailable) << client.error().message();
  }
}

TEST_P(ChannelConformance, AddressesAreChecked) {
  serve({1});
  for (const std::string address : {"", "nonsense", "ucx://", "zmq://", "ucx://127.0.0.1", "zmq://127.0.0.1",
                                    "ucx://127.0.0.1:0", "ucx://127.0.0.1:99999", "tcp://127.0.0.1:x"}) {
    const auto client = GetParam().open_client(address);
    ASSERT_FALSE(client) << address;
    EXPECT_EQ(client.error().code(), Code::invalid_argument) << address << ": " << client.error().message();
  }
}

// Both sides are connected and have nothing to do: neither wakes up, or hardly ever.
TEST_P(ChannelConformance, IdleIsIdle) {
  serve({kMiB});
  const auto client = connect();
  ASSERT_NE(client, nullptr);
  expect_fetched(*client, request_for(1, {whole(0)}));
  while (client->progress(std::chrono::milliseconds(1)).value_or(false)) {
  }
  rusage before{};
  rusage after{};
  ::getrusage(RUSAGE_SELF, &before);
  constexpr Duration kWatched = std::chrono::seconds(1);
  const Time end = system_clock().now() + kWatched;
  int wakeups = 0;
  for (Time now = system_clock().now(); now < end; now = system_clock().now()) {
    pollfd descriptor{.fd = client->descriptor(), .events = POLLIN, .revents = 0};
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - now);
    if (::poll(&descriptor, 1, static_cast<int>(left.count()) + 1) <= 0) continue;
    ++wakeups;
    while (client->progress(std::chrono::milliseconds(1)).value_or(false)) {
    }
  }
  ::getrusage(RUSAGE_SELF, &after);
  EXPECT_LE(wakeups, 20);
  EXPECT_LE(after.ru_nvcsw - before.ru_nvcsw, 100) << "some thread of the channel does not sleep";
  expect_fetched(*client, request_for(2, {whole(0)}));
}

}  // namespace freshet::channel
