// SPDX-License-Identifier: Apache-2.0
/// The part of the channels' conformance suite about what is asked and answered.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "tests/conformance/channel_conformance.h"
#include "tests/support/refused.h"

namespace freshet::channel {

TEST_P(ChannelConformance, WholeTensorsOfAllSizes) {
  serve({0, 1, 7, 4095, 4096, 4097, 64 << 10, (64 << 10) + 1, kMiB - 1, kMiB, kMiB + 1, 5 * kMiB + 3, 33 * kMiB, 0});
  const auto client = connect();
  ASSERT_NE(client, nullptr);
  std::vector<Piece> pieces;
  std::uint64_t bytes = 0;
  for (std::uint32_t tensor = 0; tensor < 14; ++tensor) {
    pieces.push_back(whole(tensor));
    bytes += pieces.back().bytes;
  }
  expect_fetched(*client, request_for(1, pieces));
  std::reverse(pieces.begin(), pieces.end());
  expect_fetched(*client, request_for(2, pieces));
  EXPECT_EQ(client->bytes_received(), 2 * bytes);
  const ChannelStat stat = server_->stat();
  EXPECT_EQ(stat.bytes_sent, 2 * bytes);
  EXPECT_EQ(stat.requests, 2u);
  EXPECT_EQ(stat.refused, 0u);
  EXPECT_EQ(stat.peers, 1u);
  EXPECT_EQ(client->kind(), server_->kind());
}

TEST_P(ChannelConformance, NothingButEmptyTensors) {
  serve({0, 0});
  const auto client = connect();
  ASSERT_NE(client, nullptr);
  expect_fetched(*client, request_for(1, {whole(0), whole(1), whole(0)}));
}

TEST_P(ChannelConformance, Ranges) {
  serve({9 * kMiB + 5, 300});
  const auto client = connect();
  ASSERT_NE(client, nullptr);
  constexpr std::uint64_t kSeed = 20;
  SCOPED_TRACE(kSeed);
  std::mt19937_64 random(kSeed);
  std::vector<Piece> pieces;
  for (int i = 0; i < 100; ++i) {
    const std::uint32_t tensor = i % 2;
    const std::uint64_t size = source_->tensor(tensor).size();
    const std::uint64_t offset = random() % (size + 1);
    pieces.push_back({.tensor = tensor, .offset = offset, .bytes = random() % (size - offset + 1)});
  }
  expect_fetched(*client, request_for(5, pieces));
}

TEST_P(ChannelConformance, TenThousandSmallPieces) {
  constexpr std::uint32_t kTensors = 10'000;
  serve(std::vector<std::uint64_t>(kTensors, 4096));
  const auto client = connect();
  ASSERT_NE(client, nullptr);
  std::vector<Piece> pieces;
  for (std::uint32_t tensor = 0; tensor < kTensors; ++tensor) pieces.push_back(whole(kTensors - 1 - tensor));
  expect_fetched(*client, request_for(1, pieces));
}

TEST_P(ChannelConformance, DeltasAmongDensePieces) {
  serve({12 * kMiB, 6 * kMiB, 3000, 2, 100});
  const auto client = connect();
  ASSERT_NE(client, nullptr);
  expect_fetched(*client, request_for(1, {with_base(0), whole(1), with_base(2), with_base(3), whole(4), with_base(1)}));
}

TEST_P(ChannelConformance, WhatIsStillComingIsNotSentBeforeItIsThere) {
  serve({5 * kMiB + 3, 1, 700, 3000, 4097, kMiB - 1, 0, 300'000});
  const auto client = connect();
  ASSERT_NE(client, nullptr);
  std::vector<Piece> pieces;
  for (std::uint32_t tensor = 0; tensor < 8; ++tensor) pieces.push_back(whole(tensor));
  for (const std::uint64_t bytes_per_look : {std::uint64_t{20'000}, std::uint64_t{300'000}, 8 * kMiB}) {
    SCOPED_TRACE(bytes_per_look);
    source_->let_trickle(bytes_per_look);
    std::atomic<bool> over{false};
    std::thread news([&] {
      while (!over) {
        server_->look_again();
        std::this_thread::yield();
      }
    });
    expect_fetched(*client, request_for(bytes_per_look, pieces));
    over = true;
    news.join();
  }
}

TEST_P(ChannelConformance, SeveralRequestsInFlightAndNoMore) {
  serve({4 * kMiB, 10});
  const auto client = connect();
  ASSERT_NE(client, nullptr);
  CollectingSink sink;
  std::vector<FetchRequest> requests;
  for (std::uint64_t number = 1; number <= kRequestsInFlightMax; ++number) {
    requests.push_back(request_for(number, {whole(0), whole(1)}));
    ASSERT_TRUE(client->fetch(requests.back(), sink));
  }
  EXPECT_TRUE(is_refused(client->fetch(request_for(99, {whole(1)}), sink), Code::out_of_space));
  EXPECT_TRUE(drive({client.get()}, [&] { return sink.ended_count() == requests.size(); }));
  for (const FetchRequest& request : requests) expect_arrived(sink, request);
  expect_fetched(*client, request_for(100, {whole(1)}));
}

TEST_P(ChannelConformance, SeveralClientsAtOnce) {
  serve({20 * kMiB, 500});
  std::vector<std::unique_ptr<ChannelClient>> clients;
  std::vector<ChannelClient*> pointers;
  CollectingSink sinks[4];
  const FetchRequest request = request_for(1, {whole(0), whole(1)});
  for (CollectingSink& sink : sinks) {
    clients.push_back(connect());
    ASSERT_NE(clients.back(), nullptr);
    pointers.push_back(clients.back().get());
    ASSERT_TRUE(clients.back()->fetch(request, sink));
  }
  EXPECT_TRUE(drive(pointers, [&] {
    return std::all_of(std::begin(sinks), std::end(sinks), [](const auto& sink) { return sink.ended_count() == 1; });
  }));
  for (const CollectingSink& sink : sinks) expect_arrived(sink, request);
}

TEST_P(ChannelConformance, WhoHasNoLeaseGetsNothing) {
  serve({kMiB});
  const auto client = connect();
  ASSERT_NE(client, nullptr);
  FetchRequest unknown = request_for(1, {whole(0)});
  unknown.lease += 1;
  FetchRequest foreign = request_for(2, {whole(0)});
  foreign.session += 1;
  FetchRequest other_version = request_for(3, {whole(0)});
  other_version.version += 1;
  for (const FetchRequest& request : {unknown, foreign, other_version}) {
    CollectingSink sink;
    EXPECT_TRUE(is_refused(fetch(*client, request, sink), Code::failed_precondition));
    EXPECT_EQ(sink.places(), 0u);
    EXPECT_EQ(sink.faults(), "");
  }
  EXPECT_EQ(server_->stat().refused, 3u);
  EXPECT_EQ(source_->opened(), 0u);
  expect_fetched(*client, request_for(4, {whole(0)}));
}

TEST_P(ChannelConformance, WhoAsksPastTheEndGetsNothing) {
  serve({kMiB});
  const auto client = connect();
  ASSERT_NE(client, nullptr);
  const std::vector<Piece> bad{{.tensor = 1, .bytes = 1},
                               {.tensor = 0, .offset = 1, .bytes = kMiB},
                               {.tensor = 0, .offset = ~std::uint64_t{0}, .bytes = 2},
                               {.tensor = 0, .offset = kMiB + 1}};
  std::uint64_t number = 0;
  for (const Piece& piece : bad) {
    CollectingSink sink;
    EXPECT_TRUE(is_refused(fetch(*client, request_for(++number, {piece}), sink), Code::invalid_argument));
    EXPECT_EQ(sink.places(), 0u);
  }
  expect_fetched(*client, request_for(++number, {whole(0)}));
}

TEST_P(ChannelConformance, AnAnswerThatCannotBeMadeEndsTheRequest) {
  serve({2 * kMiB, kMiB, 100});
  const auto client = connect();
  ASSERT_NE(client, nullptr);
  source_->fail_tensor(1);
  CollectingSink sink;
  EXPECT_TRUE(is_refused(fetch(*client, request_for(1, {whole(0), whole(1), whole(2)}), sink), Code::io_error));
  EXPECT_EQ(sink.faults(), "");
  expect_fetched(*client, request_for(2, {whole(0), whole(2)}));
  EXPECT_TRUE(source_->wait_until_open(0));
}

TEST_P(ChannelConformance, ASinkMayRefuseAPiece) {
  serve({3 * kMiB, 40 * kMiB, 3 * kMiB, 100, 200});
  const auto client = connect();
  ASSERT_NE(client, nullptr);
  for (const std::size_t refused : {0, 1, 3}) {
    SCOPED_TRACE(refused);
    CollectingSink sink;
    sink.refuse(refused);
    EXPECT_TRUE(is_refused(fetch(*client, request_for(1 + refused, {whole(0), whole(1), whole(2), whole(3)}), sink),
                           Code::out_of_space));
    EXPECT_EQ(sink.faults(), "");
  }
  CollectingSink sink;
  sink.place_wrongly(1);
  EXPECT_FALSE(fetch(*client, request_for(9, {whole(0), whole(1)}), sink));
  EXPECT_EQ(sink.faults(), "");
  expect_fetched(*client, request_for(10, {whole(0), whole(4)}));
  EXPECT_TRUE(source_->wait_until_open(0));
}

}  // namespace freshet::channel
