// SPDX-License-Identifier: Apache-2.0
/// The data channel over ZeroMQ, beyond what every channel must do (tests/conformance): peers that lie, what a client
/// that does not read costs, and keys.

#include <gmock/gmock.h>

#include <cstring>
#include <latch>
#include <set>
#include <zmq.hpp>

#include "tests/conformance/channel_conformance.h"
#include "tests/transport/security/security_fixture.h"
#include "transport/channel/zmq/frame.h"
#include "transport/channel/zmq/zmq_channel.h"

namespace freshet::channel {
namespace {

using namespace freshet::test;
using ::testing::HasSubstr;
using zmq_channel::Frame;
using zmq_channel::frame_of;
using zmq_channel::Kind;

std::vector<std::byte> message_of(const Frame& frame, const std::vector<std::byte>& data = {}) {
  std::vector<std::byte> message(sizeof frame + data.size());
  std::memcpy(message.data(), &frame, sizeof frame);
  std::copy(data.begin(), data.end(), message.begin() + sizeof frame);
  return message;
}

FetchRequest request_of(std::uint64_t number, std::vector<Piece> pieces) {
  return {.request = number,
          .session = MemorySource::kSession,
          .lease = MemorySource::kLease,
          .version = MemorySource::kVersion,
          .pieces = std::move(pieces)};
}

/// A client that says what it likes.
class RawClient {
 public:
  explicit RawClient(const std::string& address) {
    socket_.set(zmq::sockopt::linger, 0);
    socket_.set(zmq::sockopt::reconnect_ivl, -1);
    socket_.set(zmq::sockopt::rcvhwm, 1);
    socket_.set(zmq::sockopt::rcvbuf, 64 << 10);
    EXPECT_EQ(::zmq_socket_monitor(socket_.handle(), "inproc://raw", ZMQ_EVENT_DISCONNECTED), 0);
    monitor_.connect("inproc://raw");
    socket_.connect(address);
  }
  ~RawClient() { ::zmq_socket_monitor(socket_.handle(), nullptr, 0); }
  void say(const std::vector<std::byte>& message) { socket_.send(zmq::buffer(message)); }
  void say(const Frame& frame) { say(message_of(frame)); }
  /// The next message.
  std::optional<Frame> hear() {
    zmq::message_t message;
    socket_.set(zmq::sockopt::rcvtimeo, 60'000);
    if (!socket_.recv(message)) return std::nullopt;
    return zmq_channel::read_frame(bytes_of(message));
  }
  /// Whether the server ends the connection.
  bool is_put_out() {
    zmq::message_t event;
    monitor_.set(zmq::sockopt::rcvtimeo, 60'000);
    return monitor_.recv(event).has_value();
  }

 private:
  static Bytes bytes_of(const zmq::message_t& message) {
    return {static_cast<const std::byte*>(message.data()), message.size()};
  }
  zmq::context_t context_;
  zmq::socket_t socket_{context_, zmq::socket_type::dealer};
  zmq::socket_t monitor_{context_, zmq::socket_type::pair};
};

/// The answer to tensor 1 is not made, and tensor 0 does not come, before `go_on`.
class HeldSource final : public FetchSource {
 public:
  Result<std::unique_ptr<OpenFetch>> open(const FetchRequest& request) override {
    return std::make_unique<Fetch>(*this, request.pieces.front().tensor);
  }
  std::latch begun{1};
  std::latch go_on{1};

 private:
  class Fetch final : public OpenFetch {
   public:
    Fetch(HeldSource& source, std::uint32_t tensor) : source_(source), tensor_(tensor) {}
    Result<bool> can_answer(std::size_t) override { return tensor_ == 1 || source_.go_on.try_wait(); }
    Result<Answer> answer(std::size_t) override {
      if (tensor_ == 1) source_.begun.count_down();
      source_.go_on.wait();
      return Answer{.bytes = {&byte_, 1}};
    }
    void release(std::size_t) override {}

   private:
    HeldSource& source_;
    const std::uint32_t tensor_;
    const std::byte byte_{7};
  };
};

class ZmqChannel : public SecurityTest {
 protected:
  static constexpr std::uint64_t kMiB = 1 << 20;

  void serve(const std::vector<std::uint64_t>& sizes, const ZmqServerOptions& options = {}) {
    source_ = std::make_unique<MemorySource>(sizes);
    auto opened = open_zmq_server(*source_, options);
    ASSERT_TRUE(opened) << opened.error().message();
    server_ = std::move(*opened);
  }
  void TearDown() override {
    server_.reset();
    if (source_) {
      EXPECT_EQ(source_->faults(), "");
    }
  }
  /// How a fetch of tensor 0 ends.
  Status fetch(const ZmqClientOptions& options) {
    FRESHET_ASSIGN(const auto client, open_zmq_client(server_->address(), options));
    return fetch(*client, 1);
  }
  Status fetch(ChannelClient& client, std::uint64_t number) {
    CollectingSink sink;
    FRESHET_TRY(client.fetch(request_of(number, {{.bytes = source_->tensor(0).size()}}), sink));
    drive({&client}, [&] { return sink.ended(number) != nullptr; });
    return sink.ended(number) != nullptr ? *sink.ended(number) : fail(Code::timed_out, "it never ended");
  }

  std::unique_ptr<MemorySource> source_;
  std::unique_ptr<ChannelServer> server_;
};

TEST_F(ZmqChannel, AClientThatLiesIsPutOutAndCounted) {
  serve({kMiB});
  const Frame hello = frame_of(Kind::hello, 0, 8 * kMiB);
  const std::vector<std::byte> fetch = encode(request_of(1, {{.bytes = kMiB}}));
  const std::vector<std::vector<std::vector<std::byte>>> lies{
      {message_of(hello), {}},                                           // Nothing.
      {message_of(hello), std::vector<std::byte>(500, std::byte{7})},    // Nonsense.
      {message_of(hello), message_of(hello)},                            // Twice the same.
      {message_of(hello), message_of(frame_of(Kind::credit, 0, 1))},     // Credit for what was not sent.
      {message_of(hello), message_of(frame_of(Kind::chunk, 1))},         // What servers say.
      {message_of(hello), message_of(frame_of(static_cast<Kind>(77)))},  //
      {std::vector<std::byte>(3)},                                       // No hello.
      {message_of(hello), message_of(frame_of(Kind::fetch, 1), fetch), message_of(frame_of(Kind::fetch, 1), fetch),
       message_of(frame_of(Kind::credit, 0, ~std::uint64_t{0}))},
  };
  std::uint64_t refused = 0;
  for (const auto& messages : lies) {
    SCOPED_TRACE(refused);
    RawClient liar(server_->address());
    for (const auto& message : messages) liar.say(message);
    EXPECT_TRUE(liar.is_put_out());
    EXPECT_EQ(server_->stat().refused, ++refused);
  }
  RawClient speechless(server_->address());
  speechless.say(frame_of(Kind::ping));
  EXPECT_TRUE(speechless.is_put_out());
  EXPECT_TRUE(source_->wait_until_open(0));
  EXPECT_TRUE(this->fetch({}));
}

// Some come, and speak, after the server looked who had come, and before it reads what was said.
TEST_F(ZmqChannel, LiarsThatComeTogetherAreAllPutOut) {
  serve({kMiB});
  std::vector<std::unique_ptr<RawClient>> liars;
  for (int i = 0; i < 40; ++i) {
    liars.push_back(std::make_unique<RawClient>(server_->address()));
    liars.back()->say(std::vector<std::byte>(3));
  }
  for (const auto& liar : liars) EXPECT_TRUE(liar->is_put_out());
  EXPECT_EQ(server_->stat().refused, liars.size());
}

TEST_F(ZmqChannel, ARequestThatIsNoneIsRefusedAndCounted) {
  serve({kMiB});
  RawClient client(server_->address());
  client.say(frame_of(Kind::hello, 0, 8 * kMiB));
  const auto answer_to = [&](std::uint64_t number, const std::vector<std::byte>& request) {
    client.say(message_of(frame_of(Kind::fetch, number), request));
    const auto frame = client.hear();
    EXPECT_TRUE(frame && frame->kind() == static_cast<std::uint32_t>(Kind::ended) && frame->request() == number);
    return frame ? static_cast<Code>(frame->detail()) : Code::cancelled;
  };
  EXPECT_EQ(answer_to(1, {}), Code::corrupt);
  EXPECT_EQ(answer_to(2, std::vector<std::byte>(100, std::byte{1})), Code::corrupt);
  EXPECT_EQ(answer_to(3, encode(request_of(4, {{.bytes = 1}}))), Code::corrupt);
  EXPECT_EQ(answer_to(5, encode(request_of(5, {{.bytes = kMiB + 1}}))), Code::invalid_argument);
  EXPECT_EQ(server_->stat().refused, 4U);
}

TEST_F(ZmqChannel, AClientThatDoesNotReadCostsItsWindow) {
  constexpr std::uint64_t kWindow = kMiB;
  serve({64 * kMiB}, {.window_bytes = kWindow});
  RawClient greedy(server_->address());
  greedy.say(frame_of(Kind::hello, 0, 64 * kMiB));  // More than it is given.
  greedy.say(message_of(frame_of(Kind::fetch, 1), encode(request_of(1, {{.bytes = 64 * kMiB}}))));
  ASSERT_TRUE(source_->wait_until_open(1));
  // It never gives credit; after a while it is let go, and what went out stayed below its window.
  EXPECT_TRUE(source_->wait_until_open(0));
  EXPECT_LE(server_->stat().bytes_sent, kWindow);
  EXPECT_GE(server_->stat().bytes_sent, kWindow / 2);
}

TEST_F(ZmqChannel, WhoSpokeWhileALongAnswerWasMadeIsNotSilent) {
  HeldSource source;
  const auto server = open_zmq_server(source, {});
  ASSERT_TRUE(server) << server.error().message();
  const auto ask = [](RawClient& client, std::uint32_t tensor) {
    client.say(frame_of(Kind::hello, 0, 8 * kMiB));
    client.say(message_of(frame_of(Kind::fetch, 1), encode(request_of(1, {{.tensor = tensor, .bytes = 1}}))));
  };
  RawClient waits((*server)->address());
  RawClient holds_up((*server)->address());
  ask(waits, 0);
  waits.say(frame_of(Kind::ping));
  ASSERT_TRUE(waits.hear()) << "it has a fetch under way now";
  ask(holds_up, 1);
  source.begun.wait();
  waits.say(frame_of(Kind::ping));
  const Time until = system_clock().now() + kPeerSilence + std::chrono::milliseconds(100);
  EXPECT_TRUE(eventually([&] { return system_clock().now() >= until; }));
  source.go_on.count_down();
  // In any order: the answer may leave before the second ping is looked at.
  std::set<Kind> heard;
  for (int i = 0; i < 2; ++i) {
    const auto frame = waits.hear();
    ASSERT_TRUE(frame) << "it was put out";
    heard.insert(static_cast<Kind>(frame->kind()));
  }
  EXPECT_EQ(heard, (std::set{Kind::pong, Kind::batch}));
}

TEST_F(ZmqChannel, ASmallWindowAndLargeChunksGetThere) {
  serve({5 * kMiB + 1}, {.chunk_bytes = kMiB, .window_bytes = kMiB});
  EXPECT_TRUE(fetch({.window_bytes = 64 << 10}));
}

/// A message of the largest size, as CURVE makes it larger.
TEST_F(ZmqChannel, TheLargestChunksGetThereEncrypted) {
  const std::string server = make_keys("trainer");
  const std::string client = make_keys("server");
  serve({5 * kMiB + 1},
        {.credentials = *server_credentials({.key_file = server, .allow_file = client + ".pub"}), .chunk_bytes = kMiB});
  const Status fetched =
      fetch({.credentials = *client_credentials({.key_file = client, .server_key = server + ".pub"})});
  EXPECT_TRUE(fetched) << fetched.error().message();
}

TEST_F(ZmqChannel, KeysAreAskedForAndToldOf) {
  const std::string server = make_keys("trainer");
  const std::string friend_file = make_keys("friend");
  const std::string stranger = make_keys("stranger");
  const std::string allow = write_file("allow", public_text(friend_file));
  serve({kMiB}, {.address = "tcp://127.0.0.2:*",
                 .credentials = *server_credentials({.key_file = server, .allow_file = allow})});
  const auto with_key = [&](const std::string& key, const std::string& of_server) {
    return ZmqClientOptions{.credentials = *client_credentials({.key_file = key, .server_key = of_server})};
  };
  const Status good = fetch(with_key(friend_file, server + ".pub"));
  EXPECT_TRUE(good) << good.error().message();
  const Status unknown = fetch(with_key(stranger, server + ".pub"));
  ASSERT_FALSE(unknown);
  EXPECT_THAT(unknown.error().message(), HasSubstr("allow-list"));
  const Status wrong = fetch(with_key(friend_file, stranger + ".pub"));
  ASSERT_FALSE(wrong);
  EXPECT_THAT(wrong.error().message(), HasSubstr(public_text(stranger)));
  EXPECT_FALSE(fetch({}));
  EXPECT_EQ(source_->opened(), 1U);
}

TEST_F(ZmqChannel, WhoIsTakenOffTheListIsPutOut) {
  const std::string server = make_keys("trainer");
  const std::string client_file = make_keys("server");
  const std::string allow = write_file("allow", public_text(client_file));
  serve({kMiB}, {.credentials = *server_credentials({.key_file = server, .allow_file = allow})});
  auto client =
      open_zmq_client(server_->address(),
                      {.credentials = *client_credentials({.key_file = client_file, .server_key = server + ".pub"})});
  ASSERT_TRUE(client);
  ASSERT_TRUE(fetch(**client, 1));
  write_file("allow", "# nobody\n");
  std::uint64_t number = 1;
  EXPECT_TRUE(eventually([&] { return !fetch(**client, ++number); }));
}

TEST_F(ZmqChannel, OtherHostsNeedKeys) {
  MemorySource source({1});
  EXPECT_EQ(open_zmq_server(source, {.address = "tcp://0.0.0.0:*"}).error().code(), Code::invalid_argument);
  EXPECT_EQ(open_zmq_server(source, {.address = "ipc:///tmp/x"}).error().code(), Code::invalid_argument);
  EXPECT_EQ(open_zmq_server(source, {.chunk_bytes = 1}).error().code(), Code::invalid_argument);
  EXPECT_EQ(open_zmq_server(source, {.window_bytes = 1}).error().code(), Code::invalid_argument);
  EXPECT_EQ(open_zmq_client("tcp://10.0.0.1:7070").error().code(), Code::invalid_argument);
  EXPECT_EQ(open_zmq_client("tcp://127.0.0.1:7070", {.window_bytes = 1}).error().code(), Code::invalid_argument);
}

}  // namespace
}  // namespace freshet::channel
