// SPDX-License-Identifier: Apache-2.0
/// Other users of this host at loopback ports that have no keys. They are real ones: these tests need root.

#include <gtest/gtest.h>
#include <netinet/tcp.h>

#include <zmq.hpp>

#include "tests/support/other_user.h"
#include "tests/transport/model_fixture.h"
#include "transport/protocol/messages.h"
#include "transport/security/socket_owner.h"
#include "transport/zmq/sockets.h"

namespace freshet {
namespace {

using namespace freshet::test;

/// A connection over loopback, both ends in this process.
struct Pair {
  explicit Pair(int family) : listener(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
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
    const Pair pair(family);
    if (!pair.made && family == AF_INET6) GTEST_SKIP() << "this host has no IPv6 loopback";
    const auto ends = ends_of(pair.here.get());
    ASSERT_TRUE(ends) << ends.error().message();
    EXPECT_EQ(owner_of_peer(*ends).value(), ::geteuid());
    EXPECT_EQ(owner_by_table(*ends).value(), ::geteuid());
    const auto asked = owner_by_asking(*ends);
    EXPECT_EQ(asked.value_or(::geteuid()), ::geteuid());
    EXPECT_TRUE(check_same_user(pair.here.get()));
  }
}

TEST(SocketOwner, IsNobodyOnceTheOtherEndIsClosed) {
  Pair pair(AF_INET);
  const auto ends = ends_of(pair.here.get());
  // Closed, it is half open for as long as this side is, and the kernel says that it is root's.
  pair.there = FileDescriptor();
  EXPECT_EQ(owner_of_peer(*ends).error().code(), Code::not_found);
  EXPECT_EQ(owner_by_table(*ends).error().code(), Code::not_found);
  EXPECT_FALSE(check_same_user(pair.here.get()));
}

TEST(SocketOwner, IsNotWhoListensOnThatPort) {
  Pair pair(AF_INET);
  auto ends = ends_of(pair.here.get());
  ends->peer = ends->own;  // There is a socket with this end: the listener.
  EXPECT_EQ(owner_by_asking(*ends).error().code(), Code::not_found);
  EXPECT_FALSE(check_same_user(pair.listener.get()));
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

}  // namespace
}  // namespace freshet
