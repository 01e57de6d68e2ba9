// SPDX-License-Identifier: Apache-2.0
/// Peers that send whatever they like to a publisher's sockets: nothing that it serves changes, and it goes on.

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <atomic>
#include <random>
#include <zmq.hpp>

#include "core/base/file_descriptor.h"
#include "tests/transport/model_fixture.h"
#include "transport/protocol/messages.h"
#include "transport/shm/door_frame.h"
#include "transport/shm/socket_path.h"
#include "transport/zmq/this_host.h"

namespace freshet {
namespace {

using namespace freshet::test;

class HostilePeer : public StreamTest {
 protected:
  void SetUp() override {
    publisher_ = open_publisher(publisher_options());
    subscriber_ = open_subscriber(subscriber_options());
    model_.stamp_all(1);
    ASSERT_TRUE(subscriber_->wait_for(publish(*publisher_, model_), kPatience));
    for (const auto& file : std::filesystem::directory_iterator(folder_.path())) {
      if (file.path().extension() == ".door") door_ = file.path().string();
    }
    control_.set(zmq::sockopt::linger, 0);
    control_.connect(publisher_->address());
  }

  void send(const std::vector<std::byte>& bytes) { control_.send(zmq::buffer(bytes), zmq::send_flags::dontwait); }

  FileDescriptor connect_door() {
    FileDescriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    const auto path = SocketPath::of(door_);
    const sockaddr_un address = path->address();
    EXPECT_EQ(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    return socket;
  }
  /// Whether the publisher ends the connection, without having said a word.
  static bool is_turned_away(const FileDescriptor& socket) {
    char byte = 0;
    return ::recv(socket.get(), &byte, 1, 0) <= 0;
  }

  void expect_the_stream_goes_on() {
    model_.stamp_all(++stamp_);
    const VersionNumber version = publish(*publisher_, model_);
    ASSERT_TRUE(subscriber_->wait_for(version, kPatience));
    for (std::uint32_t t = 0; t < 3; ++t) EXPECT_EQ(stamp_of(subscriber_->snapshot(), t), stamp_);
  }

  std::uint64_t stamp_ = 1;
  StampedModel model_{3, 512};
  std::unique_ptr<Publisher> publisher_;
  std::unique_ptr<Subscriber> subscriber_;
  std::string door_;
  zmq::context_t context_;
  zmq::socket_t control_{context_, zmq::socket_type::dealer};
};

TEST_F(HostilePeer, SendsGarbageToTheControlSocket) {
  const std::uint32_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const std::vector<std::byte> hello =
      protocol::encode(protocol::Hello{.session = 99, .model = "demo", .label = "liar", .highest_seen = 0});
  for (int i = 0; i < 500; ++i) {
    std::vector<std::byte> bytes;
    switch (random() % 4) {
      case 0:
        bytes.resize(random() % 300);
        for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
        break;
      case 1:
        bytes = hello;
        bytes[random() % bytes.size()] ^= static_cast<std::byte>(1U << (random() % 8));
        break;
      case 2:
        bytes = hello;
        bytes.resize(random() % bytes.size());
        break;
      default: bytes = protocol::encode(protocol::Held{.session = random(), .grants_seen = ~std::uint64_t{0}});
    }
    send(bytes);
  }
  expect_the_stream_goes_on();
}

TEST_F(HostilePeer, SendsManyPartsAndTooMuch) {
  for (int part = 0; part < 50; ++part) {
    control_.send(zmq::buffer("x", 1), part == 49 ? zmq::send_flags::none : zmq::send_flags::sndmore);
  }
  send(std::vector<std::byte>(protocol::kRequestBytesMax + 1));
  expect_the_stream_goes_on();
}

TEST_F(HostilePeer, SpeaksForSessionsThatAreNotItsOwn) {
  const auto stat = publisher_->stat();
  for (const std::uint64_t session : {std::uint64_t{0}, std::uint64_t{1}, ~std::uint64_t{0}}) {
    send(protocol::encode(protocol::Want{.session = session, .request = 1}));
    send(protocol::encode(protocol::Held{.session = session}));
    send(protocol::encode(protocol::Bye{.session = session}));
    send(protocol::encode(protocol::Pong{.session = session}));
    send(protocol::encode(protocol::Announcement{.model = "demo", .number = 1000}));
  }
  expect_the_stream_goes_on();
  EXPECT_EQ(publisher_->stat().newest, stat.newest + 1);
}

TEST_F(HostilePeer, HasNoSessionOfTwoModels) {
  auto hub = open_publisher_hub({.directory = folder_.path()});
  ASSERT_TRUE(hub) << hub.error().message();
  std::vector<std::unique_ptr<Publisher>> publishers;
  for (const char* model : {"first", "second"}) {
    PublisherOptions options = publisher_options(model);
    options.hub = *hub;
    publishers.push_back(open_publisher(std::move(options)));
  }
  zmq::socket_t control(context_, zmq::socket_type::dealer);
  control.set(zmq::sockopt::linger, 0);
  control.connect(address_of(**hub));
  const auto ask = [&](const protocol::Message& message) {
    control.send(zmq::buffer(protocol::encode(message)), zmq::send_flags::none);
  };
  for (const char* model : {"first", "second"}) ask(protocol::Hello{.session = 7, .model = model, .host = this_host()});
  ask(protocol::StatRequest{});
  std::size_t welcomes = 0;
  for (;;) {
    zmq::message_t part;
    ASSERT_TRUE(control.recv(part));
    const auto message = protocol::decode(Bytes(static_cast<const std::byte*>(part.data()), part.size()));
    ASSERT_TRUE(message) << message.error().message();
    if (std::holds_alternative<protocol::StatReply>(*message)) break;
    if (std::holds_alternative<protocol::Welcome>(*message)) ++welcomes;
  }
  EXPECT_EQ(welcomes, 1U);
  EXPECT_TRUE(publishers[1]->stat().subscribers.empty());
}

TEST_F(HostilePeer, IsNotTakenInAfterItsBye) {
  auto hub = open_publisher_hub({.directory = folder_.path()});
  ASSERT_TRUE(hub) << hub.error().message();
  zmq::socket_t control(context_, zmq::socket_type::dealer);
  control.set(zmq::sockopt::linger, 0);
  control.connect(address_of(**hub));
  const auto ask = [&](const protocol::Message& message) {
    control.send(zmq::buffer(protocol::encode(message)), zmq::send_flags::none);
  };
  ask(protocol::Hello{.session = 7, .model = "late", .host = this_host()});
  ask(protocol::Bye{.session = 7});
  ask(protocol::StatRequest{});  // What came before it was heard when it is answered.
  for (bool answered = false; !answered;) {
    zmq::message_t part;
    ASSERT_TRUE(control.recv(part));
    const auto message = protocol::decode(Bytes(static_cast<const std::byte*>(part.data()), part.size()));
    ASSERT_TRUE(message) << message.error().message();
    answered = std::holds_alternative<protocol::StatReply>(*message);
  }
  PublisherOptions options = publisher_options("late");
  options.hub = *hub;
  const auto publisher = open_publisher(std::move(options));
  publish(*publisher, model_);  // The hub has told how it stands.
  EXPECT_TRUE(publisher->stat().subscribers.empty());
}

TEST_F(HostilePeer, KnocksWithoutARightTo) {
  const auto knock = [&](const std::vector<std::byte>& bytes) {
    const FileDescriptor socket = connect_door();
    EXPECT_EQ(::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
    return is_turned_away(socket);
  };
  EXPECT_TRUE(knock(shm::encode(shm::Knock{.session = 1, .token = 1})));
  EXPECT_TRUE(knock(std::vector<std::byte>(1)));
  EXPECT_TRUE(knock(std::vector<std::byte>(100'000, std::byte{7})));
  EXPECT_TRUE(knock(std::vector<std::byte>(shm::kKnockBytes, std::byte{0xFF})));
  expect_the_stream_goes_on();
}

TEST_F(HostilePeer, KnocksWhereNoDescriptorIsLeft) {
  // libzmq ends the process when it accepts without a descriptor left, so all its connections must stand before: this
  // test's own, which got an answer, and the subscriber's two, of which an announcement was heard.
  send(protocol::encode(protocol::StatRequest{}));
  zmq::message_t reply;
  ASSERT_TRUE(control_.recv(reply));
  std::atomic<bool> heard = false;
  SubscriberOptions options = subscriber_options();
  options.every = true;  // Others may have their version before they hear of it.
  options.on_update = [&heard](const Update& update) { heard = heard || update.notify > Duration::zero(); };
  subscriber_ = open_subscriber(options);
  const auto expect_the_next = [this] {
    publish(*publisher_, model_);
    ASSERT_TRUE(subscriber_->next(kPatience));
  };
  for (int i = 0; i < 10'000 && !heard; ++i) expect_the_next();
  ASSERT_TRUE(heard);

  // Several, since a descriptor that another thread lets go of at the wrong moment lets one in.
  std::vector<FileDescriptor> sockets;
  for (int i = 0; i < 8; ++i) sockets.emplace_back(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const auto path = SocketPath::of(door_);
  const sockaddr_un address = path->address();
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few{.rlim_cur = 256, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  std::vector<FileDescriptor> all;
  for (int copy = ::dup(sockets[0].get()); copy >= 0; copy = ::dup(sockets[0].get())) all.emplace_back(copy);
  std::vector<pollfd> answers;
  for (const FileDescriptor& socket : sockets) {
    EXPECT_EQ(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    answers.push_back({.fd = socket.get(), .events = POLLIN, .revents = 0});
  }
  EXPECT_GE(::poll(answers.data(), answers.size(), 60'000), 1);
  // Nor does it wait for ever for the next one.
  EXPECT_EQ(publisher_->stat().subscribers.size(), 1U);
  all.clear();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  expect_the_next();
  subscriber_.reset();  // It writes to `heard`.
}

TEST_F(HostilePeer, OpensMoreDoorsThanThereAreSeats) {
  std::vector<FileDescriptor> doors;
  for (int i = 0; i < 300; ++i) doors.push_back(connect_door());
  expect_the_stream_goes_on();
  auto late = open_subscriber(subscriber_options());
  EXPECT_TRUE(late->wait_for(1, kPatience));
}

}  // namespace
}  // namespace freshet
