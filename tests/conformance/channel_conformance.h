// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What every data channel must do. A channel's test instantiates ChannelConformance with a ChannelCase; its client
/// must also be known to channel_peer.cc, which is killed and stopped in the middle of things.

#include <gtest/gtest.h>
#include <poll.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "tests/conformance/channel_sink.h"
#include "tests/conformance/channel_source.h"
#include "transport/channel/channel.h"

namespace freshet::channel {

struct ChannelCase {
  std::string name;
  /// On loopback.
  std::function<Result<std::unique_ptr<ChannelServer>>(FetchSource&)> open_server;
  std::function<Result<std::unique_ptr<ChannelClient>>(const std::string& address)> open_client;
  /// The words that make channel_peer open a client to that address.
  std::function<std::vector<std::string>(const std::string& address)> peer_words;
  /// Why it cannot be had on this machine; empty if it can.
  std::function<std::string()> missing = [] { return std::string(); };

  friend void PrintTo(const ChannelCase& one, std::ostream* out) { *out << one.name; }
};

/// Carries clients on until `done()`. False when a connection died or nothing happened for a long time.
inline bool drive(const std::vector<ChannelClient*>& clients, const std::function<bool()>& done) {
  constexpr int kPatienceMs = 60'000;
  while (!done()) {
    bool more = false;
    std::vector<pollfd> descriptors;
    for (ChannelClient* client : clients) {
      const Result<bool> progressed = client->progress(std::chrono::milliseconds(1));
      if (done()) return true;
      if (!progressed) return false;
      more = more || *progressed;
      descriptors.push_back({.fd = client->descriptor(), .events = POLLIN, .revents = 0});
    }
    if (!more && ::poll(descriptors.data(), descriptors.size(), kPatienceMs) <= 0) return false;
  }
  return true;
}

class ChannelConformance : public testing::TestWithParam<ChannelCase> {
 protected:
  static constexpr std::uint64_t kMiB = 1 << 20;
  /// More than any channel has on its way.
  static constexpr std::uint64_t kLarge = 96 * kMiB;

  void SetUp() override {
    if (const std::string reason = GetParam().missing(); !reason.empty()) GTEST_SKIP() << reason;
  }
  void TearDown() override {
    server_.reset();
    if (source_) {
      EXPECT_EQ(source_->open_now(), 0u) << "fetches outlived their server";
      EXPECT_EQ(source_->faults(), "");
    }
  }

  void serve(const std::vector<std::uint64_t>& sizes) {
    source_ = std::make_unique<MemorySource>(sizes);
    auto opened = GetParam().open_server(*source_);
    ASSERT_TRUE(opened) << opened.error().message();
    server_ = std::move(*opened);
  }
  std::unique_ptr<ChannelClient> connect() {
    auto opened = GetParam().open_client(server_->address());
    EXPECT_TRUE(opened) << opened.error().message();
    return opened ? std::move(*opened) : nullptr;
  }
  static FetchRequest request_for(std::uint64_t number, std::vector<Piece> pieces) {
    return {.request = number,
            .session = MemorySource::kSession,
            .lease = MemorySource::kLease,
            .version = MemorySource::kVersion,
            .pieces = std::move(pieces)};
  }
  Piece whole(std::uint32_t tensor) const {
    return {.tensor = tensor, .offset = 0, .bytes = source_->tensor(tensor).size()};
  }
  Piece with_base(std::uint32_t tensor) const {
    Piece piece = whole(tensor);
    piece.base = SegmentName{.writer = {.run = {1, 2}, .incarnation = 3, .sequence = 40 + tensor}, .tensor = tensor};
    return piece;
  }

  /// How it ended.
  static Status fetch(ChannelClient& client, const FetchRequest& request, CollectingSink& sink) {
    FRESHET_TRY(client.fetch(request, sink));
    drive({&client}, [&] { return sink.ended(request.request) != nullptr; });
    const Status* ended = sink.ended(request.request);
    return ended != nullptr ? *ended : fail(Code::timed_out, "it never ended");
  }
  void expect_arrived(const CollectingSink& sink, const FetchRequest& request) const {
    const Status* ended = sink.ended(request.request);
    ASSERT_NE(ended, nullptr) << "request " << request.request << " never ended";
    ASSERT_TRUE(*ended) << ended->error().message();
    for (std::size_t i = 0; i < request.pieces.size(); ++i) {
      const auto* arrival = sink.find(request.request, i);
      ASSERT_NE(arrival, nullptr) << "piece " << i;
      EXPECT_TRUE(arrival->done) << "piece " << i;
      EXPECT_EQ(arrival->encoding, request.pieces[i].base ? Encoding::delta : Encoding::dense) << "piece " << i;
      ASSERT_TRUE(test::same_bytes(arrival->content(), source_->expected(request.pieces[i])))
          << "piece " << i << " differs";
    }
    EXPECT_EQ(sink.faults(), "");
  }
  void expect_fetched(ChannelClient& client, const FetchRequest& request) {
    CollectingSink sink;
    const Status status = fetch(client, request, sink);
    ASSERT_TRUE(status) << status.error().message();
    expect_arrived(sink, request);
  }
  /// Carries a fetch of tensor 0 on until its first bytes are there, and no further.
  static void begin(ChannelClient& client, const FetchRequest& request, CollectingSink& sink) {
    const Status queued = client.fetch(request, sink);
    ASSERT_TRUE(queued) << queued.error().message();
    ASSERT_TRUE(drive({&client}, [&] { return sink.begun(request.request); }));
    ASSERT_EQ(sink.ended(request.request), nullptr) << "too small to be stopped in the middle";
  }
  std::vector<std::string> peer_command(std::uint32_t tensor) const {
    const auto program = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "channel_peer";
    std::vector<std::string> words{program.string(), std::to_string(tensor),
                                   std::to_string(source_->tensor(tensor).size())};
    for (std::string& word : GetParam().peer_words(server_->address())) words.push_back(std::move(word));
    return words;
  }

  std::unique_ptr<MemorySource> source_;
  std::unique_ptr<ChannelServer> server_;
};

}  // namespace freshet::channel
