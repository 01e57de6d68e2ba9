// SPDX-License-Identifier: Apache-2.0
/// A peer that speaks UCX, but not our protocol, to a server of the UCX channel.

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/conformance/channel_conformance.h"
#include "transport/channel/ucx/address.h"
#include "transport/channel/ucx/ucx_channel.h"
#include "transport/channel/ucx/worker.h"

namespace freshet::channel::ucx {
namespace {

/// Sends whatever it is told to. Keeps what it sends until its end.
class RawPeer {
 public:
  explicit RawPeer(const std::string& text) {
    const auto address = parse_address(text, false);
    auto worker = Worker::open({.loopback = true});
    if (!address || !worker) return;
    worker_ = std::move(*worker);
    for (const MessageId id : {MessageId::welcome, MessageId::ended, MessageId::pong, MessageId::chunk}) {
      const Status taken = worker_->take_messages(id, [this](const Incoming& message) { take(message); });
      EXPECT_TRUE(taken);
    }
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                        UCP_EP_PARAM_FIELD_ERR_HANDLER;
    params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
    params.sockaddr.addr = address->get();
    params.sockaddr.addrlen = address->bytes;
    params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    params.err_handler.cb = [](void* peer, ucp_ep_h, ucs_status_t) { static_cast<RawPeer*>(peer)->cut_off_ = true; };
    params.err_handler.arg = this;
    EXPECT_EQ(worker_->ucx().ucp_ep_create(worker_->handle(), &params, &endpoint_), UCS_OK);
    progress_until([this] { return token_ != 0; });
  }
  ~RawPeer() {
    if (worker_ == nullptr) return;
    const ucs_status_ptr_t closing = worker_->close_by_force(endpoint_);
    while (!worker_->closed(closing)) worker_->progress();
  }
  RawPeer(const RawPeer&) = delete;
  RawPeer& operator=(const RawPeer&) = delete;

  std::uint64_t token() const { return token_; }
  bool cut_off() const { return cut_off_; }
  std::size_t refusals() const { return refusals_; }
  std::size_t pongs() const { return pongs_; }

  void send(MessageId id, std::vector<std::byte> header, std::vector<std::byte> data = {}) {
    sent_.emplace_back(std::move(header), std::move(data));
    const auto& [kept_header, kept_data] = sent_.back();
    ucp_request_param_t param{};
    const ucs_status_ptr_t request =
        worker_->ucx().ucp_am_send_nbx(endpoint_, static_cast<unsigned>(id), kept_header.data(), kept_header.size(),
                                       kept_data.data(), kept_data.size(), &param);
    if (UCS_PTR_IS_PTR(request)) worker_->ucx().ucp_request_free(request);
    worker_->progress();
  }
  void say(MessageId id, std::uint64_t request, std::vector<std::byte> data = {}, std::uint64_t reply_token = 5) {
    const wire::ToServer header(token_, reply_token, request);
    const auto* bytes = reinterpret_cast<const std::byte*>(&header);
    send(id, {bytes, bytes + sizeof header}, std::move(data));
  }
  /// False when it did not come about in a long time.
  bool progress_until(const std::function<bool()>& done) {
    const Time deadline = system_clock().now() + std::chrono::seconds(60);
    while (!done()) {
      if (system_clock().now() > deadline) return false;
      worker_->progress();
    }
    return true;
  }

 private:
  void take(const Incoming& message) {
    if (message.id == MessageId::ended) ++refusals_;
    if (message.id == MessageId::pong) ++pongs_;
    if (message.id != MessageId::welcome) return;
    if (const auto header = read_header<wire::Welcome>(message.header())) token_ = header->token();
  }

  std::unique_ptr<Worker> worker_;
  ucp_ep_h endpoint_ = nullptr;
  std::uint64_t token_ = 0;
  bool cut_off_ = false;
  std::size_t refusals_ = 0;
  std::size_t pongs_ = 0;
  std::deque<std::pair<std::vector<std::byte>, std::vector<std::byte>>> sent_;
};

class UcxHostilePeer : public testing::Test {
 protected:
  static constexpr std::uint64_t kBytes = 8 << 20;

  void SetUp() override {
    if (const auto version = ucx_version(); !version) GTEST_SKIP() << version.error().message();
    auto opened = open_ucx_server(source_);
    ASSERT_TRUE(opened) << opened.error().message();
    server_ = std::move(*opened);
  }
  void TearDown() override {
    if (server_ == nullptr) return;
    expect_served();
    server_.reset();
    EXPECT_EQ(source_.open_now(), 0u);
    EXPECT_EQ(source_.faults(), "");
  }
  static FetchRequest honest(std::uint64_t number) {
    return {.request = number,
            .session = MemorySource::kSession,
            .lease = MemorySource::kLease,
            .version = MemorySource::kVersion,
            .pieces = {{.tensor = 0, .offset = 0, .bytes = kBytes}}};
  }
  void expect_served() {
    const auto client = open_ucx_client(server_->address());
    ASSERT_TRUE(client);
    CollectingSink sink;
    ASSERT_TRUE((*client)->fetch(honest(1), sink));
    ASSERT_TRUE(drive({client->get()}, [&] { return sink.ended(1) != nullptr; }));
    ASSERT_TRUE(*sink.ended(1)) << sink.ended(1)->error().message();
    EXPECT_TRUE(sink.find(1, 0)->content() == source_.tensor(0));
  }

  MemorySource source_{{kBytes}};
  std::unique_ptr<ChannelServer> server_;
};

TEST_F(UcxHostilePeer, HeadersOfAllLengths) {
  RawPeer peer(server_->address());
  ASSERT_NE(peer.token(), 0u);
  for (const unsigned id : {1u, 2u, 3u, 8u, 9u, 12u, 40u}) {
    for (const std::size_t length : {0, 1, 8, 23, 25, 64, 65, 500}) {
      peer.send(static_cast<MessageId>(id), std::vector<std::byte>(length, std::byte{0xff}));
      peer.send(static_cast<MessageId>(id), std::vector<std::byte>(length, std::byte{0}),
                std::vector<std::byte>(100'000));
    }
  }
  peer.say(MessageId::ping, 0);
  EXPECT_TRUE(peer.progress_until([&] { return peer.pongs() > 0; })) << "it was not cut off for that";
}

TEST_F(UcxHostilePeer, AWrongTokenOpensNothing) {
  RawPeer peer(server_->address());
  for (const std::uint64_t token : {std::uint64_t{0}, peer.token() + 1, ~peer.token()}) {
    const wire::ToServer header(token, 5, 1);
    const auto* bytes = reinterpret_cast<const std::byte*>(&header);
    peer.send(MessageId::fetch, {bytes, bytes + sizeof header}, encode(honest(1)));
  }
  peer.say(MessageId::ping, 0);
  EXPECT_TRUE(peer.progress_until([&] { return peer.pongs() > 0; }));
  EXPECT_EQ(source_.opened(), 0u);
  EXPECT_EQ(server_->stat().refused, 0u);
}

TEST_F(UcxHostilePeer, RequestsThatAreNone) {
  RawPeer peer(server_->address());
  constexpr std::uint64_t kSeed = 8;
  SCOPED_TRACE(kSeed);
  std::mt19937_64 random(kSeed);
  const std::vector<std::byte> good = encode(honest(1));
  constexpr std::size_t kRequests = 60;
  for (std::size_t i = 0; i < kRequests; ++i) {
    std::vector<std::byte> bad = good;
    if (i % 3 == 0) bad.resize(random() % good.size());
    if (i % 3 == 1) bad = seeded_bytes(random() % 300'000, i);
    if (i % 3 == 2) std::fill(bad.begin(), bad.begin() + 4, std::byte(i));
    peer.say(MessageId::fetch, 100 + i, std::move(bad));
  }
  EXPECT_TRUE(peer.progress_until([&] { return peer.refusals() == kRequests; }));
  EXPECT_EQ(source_.opened(), 0u);
  // A number in the header that is not the request's.
  peer.say(MessageId::fetch, 7, encode(honest(1)));
  EXPECT_TRUE(peer.progress_until([&] { return peer.refusals() == kRequests + 1; }));
  EXPECT_EQ(source_.opened(), 0u);
}

TEST_F(UcxHostilePeer, MoreRequestsThanAllowed) {
  RawPeer peer(server_->address());
  // The peer does nothing meanwhile, so that none of them can end.
  for (std::uint64_t number = 1; number <= 40; ++number) peer.say(MessageId::fetch, number, encode(honest(number)));
  EXPECT_TRUE(peer.progress_until([&] { return peer.refusals() > 0 || peer.cut_off(); }));
  EXPECT_LE(source_.open_now(), kRequestsInFlightMax);
}

TEST_F(UcxHostilePeer, OneNumberForTwoRequestsIsCutOff) {
  RawPeer peer(server_->address());
  peer.say(MessageId::fetch, 1, encode(honest(1)));
  peer.say(MessageId::fetch, 1, encode(honest(1)));
  peer.say(MessageId::fetch, 1, encode(honest(1)));
  EXPECT_TRUE(peer.progress_until([&] { return peer.cut_off() || source_.opened() == 3; }));
  EXPECT_TRUE(source_.wait_until_open(0));
}

TEST_F(UcxHostilePeer, ARequestTooLargeIsCutOff) {
  RawPeer peer(server_->address());
  peer.say(MessageId::fetch, 1, std::vector<std::byte>(32 << 20));
  EXPECT_TRUE(peer.progress_until([&] { return peer.cut_off(); }));
  EXPECT_EQ(source_.opened(), 0u);
}

TEST_F(UcxHostilePeer, PingsAndCancelsWithoutEnd) {
  RawPeer peer(server_->address());
  for (std::uint64_t i = 0; i < 20'000; ++i) peer.say(i % 2 == 0 ? MessageId::ping : MessageId::cancel, i);
  EXPECT_TRUE(peer.progress_until([&] { return peer.pongs() > 0; }));
  EXPECT_LE(peer.pongs(), 10'000u);
}

}  // namespace
}  // namespace freshet::channel::ucx
