// SPDX-License-Identifier: Apache-2.0
/// Connections that break in every way that a peer can think of, and messages that never end: whatever comes, the
/// process lives, what comes is bounded in bytes, and others are served.

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <random>
#include <thread>
#include <vector>

#include "tests/support/raw_zmtp.h"
#include "tests/transport/model_fixture.h"
#include "transport/channel/zmq/frame.h"
#include "transport/protocol/messages.h"
#include "transport/zmq/listener.h"
#include "transport/zmq/send_budget.h"
#include "transport/zmq/sockets.h"

namespace freshet {
namespace {

using namespace freshet::test;

Time now() { return system_clock().now(); }

ZmqSocket must(Result<ZmqSocket> socket) {
  if (!socket) std::abort();
  return std::move(*socket);
}

ZmqSocket control_socket(zmq::context_t& context) {
  return must(bind_router(context, *SocketAddress::parse("tcp://127.0.0.1:*", true)));
}

/// Tends the listener until that holds; false after a minute.
template <typename Condition>
bool tend_until(Listener& listener, Condition condition) {
  std::vector<zmq::pollitem_t> items;
  listener.watch(items);
  const Time deadline = now() + kPatience;
  while (!condition()) {
    if (now() > deadline || !poll(items, std::chrono::milliseconds(100))) return false;
    listener.tend(now());
  }
  return true;
}

/// More messages than any pipe has let in so far, and in the end the one whose answer ZeroMQ writes by itself.
std::string burst_with_a_ping(int messages) {
  std::string burst;
  for (int i = 0; i < messages; ++i) burst += RawZmtp::frame(0, "x");
  return burst + RawZmtp::ping();
}

[[noreturn]] void survive_bursts_that_are_reset() {
  zmq::context_t context(1);
  ZmqSocket socket = control_socket(context);
  Listener listener(socket, Neighbours::all);
  for (int round = 0; round < 3; ++round) {
    RawZmtp peer(socket.address.text());
    if (!peer || !peer.shake_hands() || !peer.say(burst_with_a_ping(500))) std::_Exit(2);
    if (!tend_until(listener, [&] { return listener.connections() == 1; })) std::_Exit(3);
    peer.reset();
    // One that stays half-dead never ends; the assertion comes with its next heartbeat, or when its pipe is read.
    if (!tend_until(listener, [&] { return listener.connections() == 0; })) std::_Exit(4);
    while (receive(socket.socket, 2, &listener)) continue;
  }
  std::_Exit(0);
}

TEST(BrokenConnections, ABurstThatNobodyReadsAndAResetKillNobody) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(survive_bursts_that_are_reset(), ::testing::ExitedWithCode(0), "");
}

/// The other way round: a publisher that dies while its subscriber is busy.
[[noreturn]] void survive_a_publisher_that_is_reset() {
  const FileDescriptor listening(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in at = RawZmtp::address_of(":0");
  socklen_t size = sizeof at;
  if (::bind(listening.get(), reinterpret_cast<const sockaddr*>(&at), size) != 0 || ::listen(listening.get(), 8) != 0 ||
      ::getsockname(listening.get(), reinterpret_cast<sockaddr*>(&at), &size) != 0) {
    std::_Exit(2);
  }
  zmq::context_t context(1);
  const std::string address = "tcp://127.0.0.1:" + std::to_string(ntohs(at.sin_port));
  ZmqSocket socket = must(connect_dealer(context, *SocketAddress::parse(address, false)));
  // The second connection is made when the first was found dead.
  for (int life = 0; life < 3; ++life) {
    pollfd item{.fd = listening.get(), .events = POLLIN, .revents = 0};
    if (::poll(&item, 1, 60'000) != 1) std::_Exit(3);
    RawZmtp peer(FileDescriptor(::accept(listening.get(), nullptr, nullptr)), "ROUTER");
    if (!peer || !peer.shake_hands() || !peer.say(burst_with_a_ping(2000))) std::_Exit(4);
    std::vector<zmq::pollitem_t> items = {{socket.socket.handle(), 0, ZMQ_POLLIN, 0}};
    if (!poll(items, std::chrono::minutes(1))) std::_Exit(5);
    peer.reset();
    if (life == 1) {
      while (receive(socket.socket, 1)) continue;
    }
  }
  std::_Exit(0);
}

TEST(BrokenConnections, APublisherThatIsResetWhileNobodyListensKillsNoSubscriber) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(survive_a_publisher_that_is_reset(), ::testing::ExitedWithCode(0), "");
}

/// The endings that a connection can have, drawn at random, at every port of a publisher that serves others meanwhile.
[[noreturn]] void survive_a_sweep(std::uint32_t seed) {
  TemporaryFolder folder;
  auto publisher = open_publisher({.model = "demo",
                                   .hub_options = {.listen = "tcp://127.0.0.1:*", .directory = folder.path()},
                                   .lock_memory = false});
  StampedModel model(3, 512);
  model.stamp_all(1);
  const VersionNumber first = publish(*publisher, model);
  SubscriberOptions options{.model = "demo", .at = {publisher->address()}, .lock_memory = false};
  options.channel = ChannelKind::zmq;
  auto subscriber = open_subscriber(options);
  if (!subscriber->wait_for(first, kPatience)) std::_Exit(2);

  // Where the data channel listens is told to whoever says Hello.
  zmq::context_t context(1);
  zmq::socket_t asker(context, zmq::socket_type::dealer);
  asker.set(zmq::sockopt::linger, 0);
  asker.set(zmq::sockopt::rcvtimeo, 60'000);
  asker.connect(publisher->address());
  asker.send(
      zmq::buffer(protocol::encode(protocol::Hello{
          .session = 5, .model = "demo", .host = "elsewhere", .channels = protocol::bit(protocol::ChannelKind::zmq)})),
      zmq::send_flags::none);
  zmq::message_t answer;
  if (!asker.recv(answer)) std::_Exit(3);
  const auto message = protocol::decode(bytes_of(answer));
  const auto* const welcome = message ? std::get_if<protocol::Welcome>(&*message) : nullptr;
  if (welcome == nullptr) std::_Exit(4);
  std::vector<std::string> ports = {publisher->address()};
  for (const auto& offer : welcome->channels) {
    if (offer.kind == protocol::ChannelKind::zmq) ports.push_back(offer.address);
  }
  if (ports.size() != 2) std::_Exit(5);

  std::mt19937 random(seed);
  for (int i = 0; i < 200; ++i) {
    RawZmtp peer(ports[random() % ports.size()], random() % 8 == 0 ? "SUB" : "DEALER");
    if (!peer) continue;
    if (random() % 2 == 0) static_cast<void>(peer.shake_hands());
    std::string bytes;
    for (std::uint32_t frames = random() % 300; frames > 0; --frames) {
      switch (random() % 6) {
        case 0: bytes += RawZmtp::ping(); break;
        case 1: bytes += RawZmtp::frame(RawZmtp::kMore, std::string(random() % 2000, 'm')); break;
        case 2: bytes += RawZmtp::frame(RawZmtp::kCommand, "\11SUBSCRIBEdemo"); break;
        default: bytes += RawZmtp::frame(0, std::string(random() % 40, 'x'));
      }
    }
    bytes.resize(random() % (bytes.size() + 1));
    static_cast<void>(peer.say(bytes));
    if (random() % 4 != 0) peer.reset();
  }
  model.stamp_all(2);
  if (!subscriber->wait_for(publish(*publisher, model), kPatience)) std::_Exit(6);
  std::_Exit(stamp_of(subscriber->snapshot(), 1) == 2 ? 0 : 7);
}

TEST(BrokenConnections, NoBurstAndNoResetEndsAPublisher) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  // A child of the threadsafe style runs this test anew, so the seed goes by the environment.
  const char* const given = std::getenv("FRESHET_SWEEP_SEED");
  const std::uint32_t seed = given != nullptr ? static_cast<std::uint32_t>(std::stoul(given)) : std::random_device()();
  ::setenv("FRESHET_SWEEP_SEED", std::to_string(seed).c_str(), 1);
  SCOPED_TRACE("FRESHET_SWEEP_SEED=" + std::to_string(seed));
  EXPECT_EXIT(survive_a_sweep(seed), ::testing::ExitedWithCode(0), "");
  ::unsetenv("FRESHET_SWEEP_SEED");
}

class WithoutEnd : public ::testing::Test {
 protected:
  static constexpr ArrivalLimits kLimits{.connection_bytes = 256 << 10, .all_bytes = 512 << 10};
  /// Sends until it is put out, or a gigabyte. How much that was. (It may hear of its end much later: a sender that was
  /// told to wait is not told that nobody is there any more.)
  std::uint64_t send_without_end(RawZmtp& peer, const std::string& piece) {
    std::uint64_t sent = 0;
    bool was_in = false;
    while (sent < (std::uint64_t{1} << 30)) {
      const std::string_view rest = std::string_view(piece).substr(sent % piece.size());
      const ssize_t now_sent = ::send(peer.descriptor(), rest.data(), rest.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (now_sent > 0) sent += static_cast<std::uint64_t>(now_sent);
      listener_.tend(now());
      was_in = was_in || listener_.connections() == 1;
      if (was_in && listener_.connections() == 0) return sent;
      std::this_thread::yield();
    }
    return sent;
  }

  zmq::context_t context_{1};
  ZmqSocket socket_ = control_socket(context_);
  int ended_ = 0;
  Listener listener_{socket_, Neighbours::all, kLimits, [this](int) { ++ended_; }};
};

TEST(ListenerShares, AKeyThatIsAloneLeavesSomeForOthersAndElseHalf) {
  EXPECT_EQ(Listener::key_connections_max(256, /*is_alone=*/true), 224u);
  EXPECT_EQ(Listener::key_connections_max(256, /*is_alone=*/false), 128u);
  EXPECT_EQ(Listener::key_connections_max(1, /*is_alone=*/true), 1u);
}

TEST_F(WithoutEnd, AMessageWhosePartsNeverEndIsPutOut) {
  RawZmtp peer(socket_.address.text());
  ASSERT_TRUE(peer && peer.shake_hands());
  std::string parts;
  for (int i = 0; i < 4; ++i) parts += RawZmtp::frame(RawZmtp::kMore, std::string(16 << 10, 'p'));
  EXPECT_LT(send_without_end(peer, parts), std::uint64_t{512} << 20);
  EXPECT_FALSE(receive(socket_.socket, 2, &listener_));
}

TEST_F(WithoutEnd, SoAreMoreMessagesThanAreReceived) {
  RawZmtp peer(socket_.address.text());
  ASSERT_TRUE(peer && peer.shake_hands());
  EXPECT_LT(send_without_end(peer, RawZmtp::frame(0, std::string(1000, 'x'))), std::uint64_t{512} << 20);
}

TEST_F(WithoutEnd, AllTogetherHaveALimitToo) {
  std::vector<std::unique_ptr<RawZmtp>> peers;
  const std::string some = RawZmtp::frame(0, std::string(50'000, 'x'));
  for (int i = 0; i < 16; ++i) {
    peers.push_back(std::make_unique<RawZmtp>(socket_.address.text()));
    ASSERT_TRUE(*peers.back() && peers.back()->shake_hands() && peers.back()->say(some));
    listener_.tend(now());
  }
  // Ten times 50 kB are less than 512 KiB, and eleven more.
  EXPECT_TRUE(tend_until(listener_, [&] { return ended_ == 6; }));
  EXPECT_EQ(listener_.connections(), 10U);
}

TEST_F(WithoutEnd, WhoIsReceivedMaySendForEver) {
  RawZmtp peer(socket_.address.text());
  ASSERT_TRUE(peer && peer.shake_hands());
  const std::string message = RawZmtp::frame(RawZmtp::kMore, "") + RawZmtp::frame(0, std::string(60'000, 'x'));
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(peer.say(message)) << i;
    bool came = false;
    ASSERT_TRUE(
        tend_until(listener_, [&] { return came = came || receive(socket_.socket, 3, &listener_).has_value(); }));
  }
  EXPECT_EQ(listener_.connections(), 1U);
}

TEST_F(WithoutEnd, AnswersThatNobodyReadsAreLimitedInBytes) {
  SendBudget budget({.peer_bytes = 1 << 20, .all_bytes = 3 << 19});
  std::vector<std::unique_ptr<RawZmtp>> peers;
  std::vector<std::string> names;
  for (int i = 0; i < 2; ++i) {
    peers.push_back(std::make_unique<RawZmtp>(socket_.address.text()));
    ASSERT_TRUE(*peers.back() && peers.back()->shake_hands() && peers.back()->say(RawZmtp::frame(0, "hello")));
    std::optional<std::vector<zmq::message_t>> parts;
    ASSERT_TRUE(tend_until(listener_, [&] { return (parts = receive(socket_.socket, 2, &listener_)).has_value(); }));
    names.push_back(parts->front().to_string());
  }
  const auto send = [&](const std::string& peer, std::size_t bytes) {
    const auto answer = std::make_shared<const std::vector<std::byte>>(bytes);
    return budget.send(socket_.socket, peer, answer, *answer);
  };
  // More than the kernel takes. One answer goes out however large it is, and small ones before and behind it: a peer
  // that has not read it yet may well be reading. What is beside the largest is limited.
  constexpr std::size_t kLarge = std::size_t{64} << 20;
  EXPECT_EQ(send(names[0], kLarge), SendBudget::Sent::yes);
  EXPECT_EQ(budget.waiting(names[0]), kLarge);
  EXPECT_EQ(send(names[0], 1 << 20), SendBudget::Sent::yes);
  EXPECT_EQ(send(names[0], 1), SendBudget::Sent::no_room);
  EXPECT_EQ(send(names[0], kLarge), SendBudget::Sent::no_room);
  EXPECT_EQ(budget.largest(), names[0]);
  EXPECT_EQ(send(names[1], (1 << 19) + 1), SendBudget::Sent::crowded);
  EXPECT_EQ(budget.waiting(), kLarge + (1 << 20));
  for (auto& peer : peers) peer->reset();
  const auto is_given_back = [&] {
    receive(socket_.socket, 2, &listener_);  // ZeroMQ hears of the end.
    return budget.waiting() == 0;
  };
  EXPECT_TRUE(tend_until(listener_, is_given_back)) << "what they leave is given back";
}

}  // namespace
}  // namespace freshet
