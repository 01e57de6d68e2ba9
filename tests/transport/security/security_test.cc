// SPDX-License-Identifier: Apache-2.0
/// Publishers and subscribers with keys: who gets in, who does not, and what each side is told.

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <zmq.hpp>

#include "core/base/file_descriptor.h"
#include "tests/support/refused.h"
#include "tests/transport/security/security_fixture.h"
#include "transport/current.h"
#include "transport/protocol/messages.h"
#include "transport/zmq/listener.h"
#include "transport/zmq/this_host.h"

namespace freshet {
namespace {

using namespace freshet::test;
using ::testing::HasSubstr;

class Security : public SecurityTest {
 protected:
  /// Waits for an error that names `what`.
  static bool is_told(Subscriber& subscriber, const std::string& what) {
    return eventually([&] { return subscriber.status().last_error.find(what) != std::string::npos; });
  }
  void expect_stream(Publisher& publisher, Subscriber& subscriber) {
    model_.stamp_all(++stamp_);
    ASSERT_TRUE(subscriber.wait_for(publish(publisher, model_), kPatience)) << subscriber.status().last_error;
    EXPECT_EQ(stamp_of(subscriber.snapshot(), 0), stamp_);
  }
  static int port_of(const std::string& address) { return std::stoi(address.substr(address.rfind(':') + 1)); }

  std::uint64_t stamp_ = 0;
  StampedModel model_{3, 512};
};

TEST_F(Security, StreamsOnEveryKindOfAddress) {
  const std::string client = make_keys("server");
  for (const char* listen : {"", "tcp://127.0.0.1:*", "tcp://127.0.0.2:*", "tcp://*:*", "tcp://0.0.0.0:*",
                             "tcp://[::1]:*", "tcp://[::]:*"}) {
    SCOPED_TRACE(listen);
    auto opened = Publisher::open(guarded_publisher(listen, public_text(client) + " server"));
    if (!opened && std::string(listen).find('[') != std::string::npos) continue;  // A host without IPv6.
    ASSERT_TRUE(opened) << opened.error().message();
    auto subscriber = open_subscriber(guarded_subscriber((*opened)->address(), client));
    expect_stream(**opened, *subscriber);
    // News of the next version comes by the same connection.
    expect_stream(**opened, *subscriber);
    const auto stats = ask_publisher_stat((*opened)->address(), "demo", kPatience,
                                          {.key_file = client, .server_key = public_text(server_)});
    ASSERT_TRUE(stats) << stats.error().message();
    EXPECT_EQ(stats->front().newest, subscriber->status().serving);
  }
}

/// What other hosts do, here on one: nothing is mapped, and the publisher cannot say at which address it is reached.
TEST_F(Security, BytesAreFetchedFromWhoListensOnEveryInterface) {
  const std::string client = make_keys("server");
  for (const char* listen : {"tcp://*:*", "tcp://[::]:*"}) {
    SCOPED_TRACE(listen);
    auto opened = Publisher::open(guarded_publisher(listen, public_text(client) + " server"));
    if (!opened && std::string(listen).find('[') != std::string::npos) continue;  // A host without IPv6.
    ASSERT_TRUE(opened) << opened.error().message();
    SubscriberOptions options = guarded_subscriber((*opened)->address(), client);
    options.channel = ChannelKind::zmq;
    auto subscriber = open_subscriber(std::move(options));
    expect_stream(**opened, *subscriber);
    EXPECT_EQ(subscriber->status().last_error, "");
  }
}

TEST_F(Security, OtherHostsNeedKeys) {
  for (const char* address : {"tcp://0.0.0.0:7070", "tcp://*:7070", "tcp://10.0.0.1:7070", "tcp://[::]:7070"}) {
    PublisherOptions options = publisher_options();
    options.hub_options.listen = address;
    const auto refused = Publisher::open(std::move(options));
    ASSERT_TRUE(is_refused(refused, Code::invalid_argument));
    for (const char* hint : {"freshet keygen", "--keys", "--allow"}) {
      EXPECT_THAT(refused.error().message(), HasSubstr(hint));
    }
  }
  const auto refused = Subscriber::open({.model = "demo", .at = {"tcp://10.0.0.1:7070"}});
  ASSERT_FALSE(refused);
  for (const char* hint : {"freshet keygen", "--keys", "--server-key"}) {
    EXPECT_THAT(refused.error().message(), HasSubstr(hint));
  }
}

TEST_F(Security, AClientThatIsNotListedIsToldSo) {
  const std::string friend_file = make_keys("friend");
  const std::string stranger = make_keys("stranger");
  auto publisher = open_publisher(guarded_publisher("tcp://127.0.0.2:*", public_text(friend_file)));
  ::testing::internal::CaptureStderr();
  auto subscriber = open_subscriber(guarded_subscriber(publisher->address(), stranger));
  ASSERT_TRUE(is_told(*subscriber, "allow-list"));
  EXPECT_THAT(subscriber->status().last_error, HasSubstr(public_text(stranger)));
  EXPECT_FALSE(subscriber->status().connected);
  const auto stats =
      ask_publisher_stat(publisher->address(), "", kPatience, {.key_file = stranger, .server_key = server_ + ".pub"});
  ASSERT_TRUE(is_refused(stats, Code::failed_precondition, "allow-list"));
  subscriber.reset();
  publisher.reset();
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("127.0.0."));
  EXPECT_THAT(log, HasSubstr("its key " + public_text(stranger) + " is not in " + path_of("allow")));
}

TEST_F(Security, TheListIsReadAgainWhileRunning) {
  const std::string first = make_keys("first");
  const std::string second = make_keys("second");
  auto publisher = open_publisher(guarded_publisher("tcp://127.0.0.2:*", public_text(first)));
  auto old_friend = open_subscriber(guarded_subscriber(publisher->address(), first));
  auto newcomer = open_subscriber(guarded_subscriber(publisher->address(), second));
  expect_stream(*publisher, *old_friend);
  ASSERT_TRUE(is_told(*newcomer, "allow-list"));
  // A bad line changes nothing.
  write_file("allow", public_text(second) + "\nnonsense\n");
  expect_stream(*publisher, *old_friend);
  write_file("allow", public_text(first) + "\n" + public_text(second) + "\n");
  expect_stream(*publisher, *newcomer);
  EXPECT_EQ(newcomer->status().last_error, "");
  expect_stream(*publisher, *old_friend);
  // Who is taken off loses its connections, and is told why when it comes back.
  write_file("allow", public_text(second) + "\n");
  ASSERT_TRUE(is_told(*old_friend, "allow-list"));
  ASSERT_TRUE(eventually([&] {
    const auto stat = publisher->stat();
    return std::any_of(stat.subscribers.begin(), stat.subscribers.end(), [](const auto& one) { return one.silent; });
  }));
  expect_stream(*publisher, *newcomer);
  EXPECT_LT(old_friend->status().serving, newcomer->status().serving);
}

TEST_F(Security, WhoIsTakenOffTheListBeforeThePublisherComesIsNotTakenIn) {
  const std::string client = make_keys("client");
  const std::string other = make_keys("other");
  auto hub = open_publisher_hub(guarded_publisher("tcp://127.0.0.2:*", public_text(client)).hub_options);
  ASSERT_TRUE(hub) << hub.error().message();
  const auto keys = KeyPair::read(client);
  ASSERT_TRUE(keys) << keys.error().message();
  zmq::context_t context;
  zmq::socket_t control(context, zmq::socket_type::dealer);
  control.set(zmq::sockopt::linger, 0);
  control.set(zmq::sockopt::curve_serverkey, public_text(server_));
  control.set(zmq::sockopt::curve_publickey, keys->public_key().text());
  control.set(zmq::sockopt::curve_secretkey, keys->secret_text());
  control.connect(address_of(**hub));
  const auto hello = protocol::encode(protocol::Hello{.session = 7, .model = "demo", .host = this_host()});
  ASSERT_TRUE(control.send(zmq::buffer(hello), zmq::send_flags::none));
  zmq::message_t answer;
  ASSERT_TRUE(control.recv(answer));
  const auto refusal = protocol::decode(Bytes(static_cast<const std::byte*>(answer.data()), answer.size()));
  ASSERT_TRUE(refusal && std::holds_alternative<protocol::Refusal>(*refusal));
  write_file("allow", public_text(other));
  // The list is read again when its key is refused.
  ASSERT_TRUE(eventually([&] {
    const auto stats =
        ask_publisher_stat(address_of(**hub), "", kPatience, {.key_file = client, .server_key = server_ + ".pub"});
    return !stats && stats.error().code() == Code::failed_precondition;
  }));
  const auto publisher = open_publisher({.model = "demo", .hub = *hub});
  publish(*publisher, model_);  // The hub has told how it stands.
  EXPECT_TRUE(publisher->stat().subscribers.empty());
}

TEST_F(Security, OnlyOperatorsSayWhatIsCurrent) {
  const std::string server = make_keys("server");
  const std::string ann = make_keys("ann");
  PublisherOptions options =
      guarded_publisher("tcp://127.0.0.2:*", public_text(server) + " server\noperator " + public_text(ann) + " ann");
  options.keep_versions = 4;
  auto publisher = open_publisher(std::move(options));
  for (int i = 0; i < 2; ++i) publish(*publisher, model_);
  const auto ask = [&](const std::string& key_file, VersionNumber version, bool hold) {
    return ask_activate({.model = "demo",
                         .at = publisher->address(),
                         .security = {.key_file = key_file, .server_key = server_ + ".pub"}},
                        {.version = version, .hold = hold});
  };
  ::testing::internal::CaptureStderr();
  const auto refused = ask(server, 1, true);
  EXPECT_EQ(publisher->stat().current, (CurrentVersion{.version = 2}));
  const auto back = ask(ann, 1, true);
  EXPECT_EQ(publisher->stat().current, (CurrentVersion{.epoch = 1, .version = 1, .hold = true}));
  // Read again while it runs, as the rest of the list is.
  write_file("allow", "operator " + public_text(server) + "\n" + public_text(ann));
  EXPECT_TRUE(eventually([&] { return static_cast<bool>(ask(server, 2, false)); }));
  const auto refused_now = ask(ann, 1, true);
  EXPECT_EQ(publisher->stat().current, (CurrentVersion{.epoch = 2, .version = 2}));
  // The publisher's own process needs no word.
  EXPECT_TRUE(publisher->rollback(1));
  publisher.reset();
  const std::string log = ::testing::internal::GetCapturedStderr();
  ASSERT_TRUE(is_refused(refused, Code::failed_precondition, "operator"));
  EXPECT_THAT(log, HasSubstr(public_text(server) + " (server) has no operator rights in " + path_of("allow")));
  EXPECT_TRUE(back);
  EXPECT_FALSE(refused_now);
}

TEST_F(Security, AFileOfTheUsersOwnNeedsNoOperator) {
  const std::string client = make_keys("server");
  PublisherOptions options = guarded_publisher("", public_text(client));
  options.keep_versions = 4;
  auto publisher = open_publisher(std::move(options));
  for (int i = 0; i < 2; ++i) publish(*publisher, model_);
  EXPECT_TRUE(ask_activate(
      {.model = "demo", .at = {publisher->address()}, .security = {.key_file = client, .server_key = server_ + ".pub"}},
      {.version = 1, .hold = true}));
}

TEST_F(Security, AWrongServerKeyIsToldOnBothSides) {
  const std::string client = make_keys("server");
  const std::string other = make_keys("other");
  auto publisher = open_publisher(guarded_publisher("tcp://127.0.0.2:*", public_text(client)));
  SubscriberOptions options = guarded_subscriber(publisher->address(), client);
  options.security.server_key = public_text(other);
  ::testing::internal::CaptureStderr();
  auto subscriber = open_subscriber(std::move(options));
  ASSERT_TRUE(is_told(*subscriber, "server key " + public_text(other)));
  EXPECT_FALSE(subscriber->status().connected);
  subscriber.reset();
  publisher.reset();
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("expects another public key of this publisher"));
}

TEST_F(Security, WhoHasNoKeysIsToldThatTheyAreNeeded) {
  const std::string client = make_keys("server");
  auto guarded = open_publisher(guarded_publisher("tcp://127.0.0.1:*", public_text(client)));
  auto subscriber = open_subscriber({.model = "demo", .at = {guarded->address()}});
  EXPECT_TRUE(is_told(*subscriber, "wants keys"));
  const auto stats = ask_publisher_stat(guarded->address(), "", kPatience);
  ASSERT_FALSE(stats);
  EXPECT_THAT(stats.error().message(), HasSubstr("wants keys"));
  guarded.reset();

  PublisherOptions open_options = publisher_options();
  open_options.hub_options.listen = "tcp://127.0.0.1:*";
  auto open = open_publisher(std::move(open_options));
  auto careful = open_subscriber(guarded_subscriber(open->address(), client));
  EXPECT_TRUE(is_told(*careful, "uses no keys"));
}

/// Everything that one gets from ZMTP's greeting on, having sent `bytes`, until the other end closes.
std::string answer_to(int port, const std::string& bytes) {
  const FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{.sin_family = AF_INET, .sin_port = htons(static_cast<std::uint16_t>(port)), .sin_addr = {}};
  ::inet_pton(AF_INET, "127.0.0.2", &address.sin_addr);
  EXPECT_EQ(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  EXPECT_EQ(::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  std::string got;
  std::array<char, 4096> buffer;
  for (;;) {
    pollfd ready{.fd = socket.get(), .events = POLLIN, .revents = 0};
    if (::poll(&ready, 1, 30'000) != 1) {
      ADD_FAILURE() << "the connection stays open";
      return got;
    }
    const ssize_t count = ::recv(socket.get(), buffer.data(), buffer.size(), 0);
    if (count <= 0) return got;
    got.append(buffer.data(), static_cast<std::size_t>(count));
  }
}

std::string greeting(const char* mechanism) {
  std::string text = std::string("\xFF\0\0\0\0\0\0\0\x01\x7F\x03\0", 12) + mechanism;
  text.resize(64);
  return text;
}

TEST_F(Security, AStrangerLearnsNothing) {
  const std::string client = make_keys("server");
  auto publisher = open_publisher(guarded_publisher("tcp://127.0.0.2:*", public_text(client)));
  publish(*publisher, model_);
  const int port = port_of(publisher->address());
  const std::string hello = [] {
    const auto bytes = protocol::encode(protocol::Hello{.session = 1, .model = "demo", .host = this_host()});
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }();
  const std::string null_ready = std::string(
      "\x04\x1A\x05READY\x0BSocket-Type\0\0\0\x06"
      "DEALER",
      28);
  // Silence, another protocol, no mechanism, the right one with nonsense after it.
  for (const std::string& sent : {std::string(), std::string("GET / HTTP/1.0\r\n\r\n"), hello,
                                  greeting("NULL") + null_ready + '\0' + static_cast<char>(hello.size()) + hello,
                                  greeting("CURVE") + std::string("\x04\xC8\x05HELLO", 8) + std::string(194, 'x'),
                                  greeting("CURVE") + null_ready}) {
    const std::string got = answer_to(port, sent);
    // ZMTP's greeting (RFC 23): signature, version, mechanism, as-server, filler. Nothing of ours is in it.
    EXPECT_LE(got.size(), 64U);
    EXPECT_EQ(got, greeting("CURVE").substr(0, 32).append(1, '\x01').append(31, '\0').substr(0, got.size()));
  }
  auto subscriber = open_subscriber(guarded_subscriber(publisher->address(), client));
  expect_stream(*publisher, *subscriber);
}

/// More than a listener lets stand.
TEST_F(Security, ACrowdOfStrangersLeavesRoomForFriends) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few{.rlim_cur = 512, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  const std::string client = make_keys("server");
  auto publisher = open_publisher(guarded_publisher("tcp://127.0.0.2:*", public_text(client)));
  auto subscriber = open_subscriber(guarded_subscriber(publisher->address(), client));
  expect_stream(*publisher, *subscriber);
  sockaddr_in address{.sin_family = AF_INET,
                      .sin_port = htons(static_cast<std::uint16_t>(port_of(publisher->address()))),
                      .sin_addr = {}};
  ::inet_pton(AF_INET, "127.0.0.2", &address.sin_addr);
  ::testing::internal::CaptureStderr();
  std::vector<FileDescriptor> crowd;
  const std::size_t let_stand = Listener::connections_max();
  for (std::size_t i = 0; i < let_stand + 30; ++i) {
    crowd.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::connect(crowd.back().get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  }
  expect_stream(*publisher, *subscriber);
  // Those above the limit are put out at once, the rest when they have said nothing for too long.
  for (const FileDescriptor& stranger : crowd) {
    char byte = 0;
    while (::recv(stranger.get(), &byte, 1, 0) > 0) {
    }
  }
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr(std::to_string(let_stand) + " connections at tcp://127.0.0.2"));
  expect_stream(*publisher, *subscriber);
  crowd.clear();
  auto late = open_subscriber(guarded_subscriber(publisher->address(), client));
  expect_stream(*publisher, *late);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
}

}  // namespace
}  // namespace freshet
