// SPDX-License-Identifier: Apache-2.0
/// Other users of this host at loopback ports that have no keys, connecting and listening. They are real ones: these
/// tests need root.

#include <gtest/gtest.h>
#include <netinet/tcp.h>

#include <utility>
#include <zmq.hpp>

#include "tests/conformance/channel_source.h"
#include "tests/support/other_user.h"
#include "tests/transport/model_fixture.h"
#include "transport/ask/ask_stat.h"
#include "transport/channel/zmq/zmq_channel.h"
#include "transport/protocol/messages.h"
#include "transport/security/socket_owner.h"
#include "transport/zmq/sockets.h"

namespace freshet {
namespace {

using namespace freshet::test;

/// A connection over loopback, both ends in this process.
struct LoopbackConnection {
  explicit LoopbackConnection(int family) : listener(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_storage at{};
    at.ss_family = static_cast<sa_family_t>(family);
    if (family == AF_INET) reinterpret_cast<sockaddr_in&>(at).sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (family == AF_INET6) reinterpret_cast<sockaddr_in6&>(at).sin6_addr = in6addr_loopback;
    socklen_t bytes = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    made = ::bind(listener.get(), reinterpret_cast<sockaddr*>(&at), bytes) == 0 && ::listen(listener.get(), 8) == 0 &&
           ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&at), &bytes) == 0;
    there = FileDescriptor(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    made = made && ::connect(there.get(), reinterpret_cast<sockaddr*>(&at), bytes) == 0;
    if (made) here = FileDescriptor(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  }
  FileDescriptor listener, there, here;
  bool made = false;
};

TEST(SocketOwner, IsTheUserAtTheOtherEnd) {
  for (const int family : {AF_INET, AF_INET6}) {
    const LoopbackConnection connection(family);
    if (!connection.made && family == AF_INET6) GTEST_SKIP() << "this host has no IPv6 loopback";
    const auto ends = ends_of(connection.here.get());
    ASSERT_TRUE(ends) << ends.error().message();
    EXPECT_EQ(owner_of_peer(*ends).value(), ::geteuid());
    EXPECT_EQ(owner_by_table(*ends).value(), ::geteuid());
    const auto asked = owner_by_asking(*ends);
    EXPECT_EQ(asked.value_or(::geteuid()), ::geteuid());
    EXPECT_TRUE(check_same_user(connection.here.get()));
  }
}

TEST(SocketOwner, IsNobodyOnceTheOtherEndIsClosed) {
  LoopbackConnection connection(AF_INET);
  const auto ends = ends_of(connection.here.get());
  // Closed, it is half open for as long as this side is, and the kernel says that it is root's.
  connection.there = FileDescriptor();
  EXPECT_EQ(owner_of_peer(*ends).error().code(), Code::not_found);
  EXPECT_EQ(owner_by_table(*ends).error().code(), Code::not_found);
  EXPECT_FALSE(check_same_user(connection.here.get()));
}

TEST(SocketOwner, IsNotWhoListensOnThatPort) {
  LoopbackConnection connection(AF_INET);
  auto ends = ends_of(connection.here.get());
  ends->peer = ends->own;  // There is a socket with this end: the listener.
  EXPECT_EQ(owner_by_asking(*ends).error().code(), Code::not_found);
  EXPECT_FALSE(check_same_user(connection.listener.get()));
}

TEST(SocketOwner, IsWhoListensThere) {
  for (const int family : {AF_INET, AF_INET6}) {
    LoopbackConnection connection(family);
    if (!connection.made && family == AF_INET6) GTEST_SKIP() << "this host has no IPv6 loopback";
    const sockaddr_storage there = ends_of(connection.here.get())->own;
    EXPECT_TRUE(check_listener(there));
    connection.listener = FileDescriptor();
    EXPECT_EQ(check_listener(there).error().code(), Code::unavailable) << "its connections are no listeners";
  }
}

TEST(SocketOwner, IsTheTablesListenerToo) {
  const LoopbackConnection connection(AF_INET);
  ConnectionEnds listener = ends_of(connection.here.get()).value();
  listener.peer = std::exchange(listener.own, {});
  listener.own.ss_family = AF_INET;
  EXPECT_EQ(owner_by_table(listener).value(), ::geteuid());
  EXPECT_EQ(owner_by_asking(listener).value_or(::geteuid()), ::geteuid());
}

TEST(SocketOwner, IsKnownOfAUnixSocket) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const FileDescriptor here(ends[0]), there(ends[1]);
  EXPECT_TRUE(check_same_user(here.get()));
}

class Neighbour : public StreamTest {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  }
  PublisherOptions loopback(bool open) {
    PublisherOptions options = publisher_options();
    options.hub_options.listen = "tcp://127.0.0.1:*";
    options.hub_options.security.open_loopback = open;
    return options;
  }
  static std::string text_of(const protocol::Message& message) {
    const std::vector<std::byte> bytes = protocol::encode(message);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  /// Asks how the publisher is, and whether it answers.
  static bool asks(const std::string& address) {
    StrangeClient client(address);
    client.say("DEALER", text_of(protocol::StatRequest{}));
    return client.hears();
  }
};

TEST_F(Neighbour, GetsNoAnswerFromAControlSocket) {
  OtherUser other(asks);
  const auto publisher = open_publisher(loopback(false));
  EXPECT_TRUE(asks(publisher->address())) << "the same user";
  EXPECT_EQ(other.go(publisher->address()), 'n');
}

TEST_F(Neighbour, IsAdmittedWhereLoopbackIsOpen) {
  OtherUser other(asks);
  const auto publisher = open_publisher(loopback(true));
  EXPECT_EQ(other.go(publisher->address()), 'y');
}

/// A publisher of another user, at `listen`, that admits everybody.
OtherUsersServer::Served publish_as_neighbour(const std::string& listen) {
  struct World {
    TemporaryFolder folder;
    std::unique_ptr<Publisher> publisher;
  };
  auto world = std::make_shared<World>();
  PublisherOptions options{.model = "demo", .hub_options = {.listen = listen, .directory = world->folder.path()}};
  options.hub_options.security.open_loopback = true;
  auto publisher = Publisher::open(std::move(options));
  if (!publisher) return {};
  world->publisher = std::move(*publisher);
  if (!world->publisher->publish(StampedModel(2, 64).views(), {})) return {};
  return {.server = world, .address = world->publisher->address()};
}

TEST_F(Neighbour, IsNotBelievedAsAPublisher) {
  const OtherUsersServer other([] { return publish_as_neighbour("tcp://127.0.0.1:*"); });
  ASSERT_FALSE(other.address().empty());
  SubscriberOptions options = subscriber_options();
  options.at = {other.address()};
  const auto subscriber = open_subscriber(options);
  EXPECT_TRUE(eventually([&] { return subscriber->status().last_error.find("user 65534") != std::string::npos; }));
  EXPECT_FALSE(subscriber->status().connected);
  EXPECT_FALSE(subscriber->snapshot());
  const auto stat =
      ask_stat({.model = "", .at = other.address(), .directory = folder_.path(), .security = {}}, kPatience);
  EXPECT_EQ(stat.error().code(), Code::failed_precondition);
  EXPECT_NE(stat.error().message().find("user 65534"), std::string::npos) << stat.error().message();

  options.security.open_loopback = true;
  const auto trusting = open_subscriber(options);
  EXPECT_TRUE(eventually([&] { return static_cast<bool>(trusting->snapshot()); }));
  EXPECT_TRUE(ask_stat({.model = "", .at = other.address(), .directory = folder_.path(), .security = options.security},
                       kPatience));
}

TEST_F(Neighbour, IsNotBelievedAtASocketFile) {
  const OtherUsersServer other([] {
    auto folder = std::make_shared<TemporaryFolder>();
    auto served = publish_as_neighbour("ipc://" + folder->path() + "/control");
    using Both = std::pair<std::shared_ptr<void>, std::shared_ptr<void>>;
    return OtherUsersServer::Served{std::make_shared<Both>(folder, served.server), served.address};
  });
  ASSERT_FALSE(other.address().empty());
  const auto stat =
      ask_stat({.model = "", .at = other.address(), .directory = folder_.path(), .security = {}}, kPatience);
  EXPECT_EQ(stat.error().code(), Code::failed_precondition);
  EXPECT_NE(stat.error().message().find("user 65534"), std::string::npos) << stat.error().message();
}

/// A directory on Redis, or a run folder, still has the address of a publisher that is dead: its port is free to take.
TEST_F(Neighbour, IsNotBelievedAtTheAddressOfADeadPublisher) {
  // Of the next test process or of nobody: a port that was just free.
  std::string address;
  {
    const auto first = open_publisher(loopback(false));
    address = first->address();
  }
  const OtherUsersServer other([&] { return publish_as_neighbour(address); });
  if (other.address().empty()) GTEST_SKIP() << "another process took the port";
  SubscriberOptions options = subscriber_options();
  options.at = {address};
  const auto subscriber = open_subscriber(options);
  EXPECT_TRUE(eventually([&] { return subscriber->status().last_error.find("user 65534") != std::string::npos; }));
  EXPECT_FALSE(subscriber->snapshot());
}

TEST_F(Neighbour, IsNotBelievedAtADataPort) {
  static constexpr std::uint64_t kBytes = 64;
  const OtherUsersServer other([] {
    struct World {
      channel::MemorySource source{{kBytes}};
      std::unique_ptr<channel::ChannelServer> server;
    };
    auto world = std::make_shared<World>();
    auto server = channel::open_zmq_server(world->source, {.neighbours = Neighbours::all});
    if (!server) return OtherUsersServer::Served{};
    world->server = std::move(*server);
    return OtherUsersServer::Served{world, world->server->address()};
  });
  ASSERT_FALSE(other.address().empty());
  const auto client = channel::open_zmq_client(other.address());
  ASSERT_TRUE(client);
  Result<bool> went = true;
  EXPECT_TRUE(eventually([&] {
    went = (*client)->progress(std::chrono::milliseconds(10));
    return !went;
  }));
  EXPECT_EQ(went.error().code(), Code::failed_precondition);
  EXPECT_NE(went.error().message().find("user 65534"), std::string::npos) << went.error().message();
}

}  // namespace
}  // namespace freshet
