// SPDX-License-Identifier: Apache-2.0
/// Clients that say what none of ours does: the server goes on serving the others.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <thread>
#include <zmq.hpp>

#include "core/base/clock.h"
#include "core/base/file_descriptor.h"
#include "repo/serve/lane/lane_memory.h"
#include "repo/serve/remote_repository.h"
#include "repo/serve/server.h"
#include "repo/serve/wire/messages.h"
#include "tests/repo/world.h"
#include "tests/support/eventually.h"
#include "tests/support/temporary_folder.h"
#include "transport/security/keys.h"

namespace freshet {
namespace {

using namespace rpc;

/// A client's socket without a client.
class RawClient {
 public:
  /// `unread_max`: how many answers ZeroMQ takes for it that it has not heard.
  explicit RawClient(const std::string& address, int unread_max = 1000)
      : socket_(context_, zmq::socket_type::dealer) {
    socket_.set(zmq::sockopt::linger, 0);
    socket_.set(zmq::sockopt::rcvhwm, unread_max);
    socket_.set(zmq::sockopt::rcvtimeo, 5000);
    socket_.connect(address);
  }
  void say(Bytes bytes, bool more = false) {
    socket_.send(zmq::buffer(bytes.data(), bytes.size()), more ? zmq::send_flags::sndmore : zmq::send_flags::none);
  }
  void say(const Encoded& message, bool more = false) {
    say(std::as_bytes(std::span(message.data(), message.size())), more);
  }
  /// The next answer; nothing when none comes.
  std::optional<Received<wire::Reply>> hear() {
    zmq::message_t message;
    if (!socket_.recv(message)) return std::nullopt;
    auto reply = Received<wire::Reply>::open(Bytes(static_cast<const std::byte*>(message.data()), message.size()));
    if (!reply) return std::nullopt;
    return std::move(*reply);
  }
  void hello() {
    Builder builder;
    say(request(builder, 1, wire::CreateHello(builder, kProtocolVersion)));
    const auto welcome = hear();
    ASSERT_TRUE(welcome && (*welcome)->body_as_Welcome() != nullptr);
  }

 private:
  zmq::context_t context_;
  zmq::socket_t socket_;
};

class HostileClient : public testing::Test {
 protected:
  void SetUp() override {
    auto server = RepositoryServer::open(*local_, {.address = address_, .security = {}, .channels = "auto,shm"});
    ASSERT_TRUE(server) << server.error().message();
    server_ = std::move(*server);
  }
  void expect_service() {
    const auto remote = connect_repository(address_);
    ASSERT_TRUE(remote) << remote.error().message();
    EXPECT_EQ((*remote)->latest("net").value(), 1u);
  }
  Encoded put_message(std::uint64_t number) {
    Builder builder;
    Manifest manifest = version_.manifest;
    manifest.id = test_id(99);
    manifest.owners = OwnerMap::all_written_by(manifest.id, manifest.digests.size());
    manifest.name.number = 1;
    return request(builder, number, rpc::put(builder, manifest, Repository::PutOptions{}));
  }

  TemporaryFolder folder_;
  const std::string address_ = "ipc://" + folder_.path() + "/socket";
  std::mt19937_64 random_{11};
  std::unique_ptr<ProviderRepository> local_ = open_or_die(make_memory_backend());
  const TestVersion version_ = [this] {
    TestVersion version = make_version("net", test_id(1), test_architecture({100, 3000}), nullptr, {}, random_);
    EXPECT_TRUE(put(*local_, version));
    return version;
  }();
  std::unique_ptr<RepositoryServer> server_;
};

TEST_F(HostileClient, DamagedMessagesAreRefusedAndHarmNobody) {
  const Encoded good = put_message(2);
  std::vector<std::byte> bytes(good.size());
  std::memcpy(bytes.data(), good.data(), good.size());
  RawClient client(address_);
  for (int i = 0; i < 400; ++i) {
    Builder builder;
    client.say(request(builder, 1, wire::CreateHello(builder, kProtocolVersion)));
    std::vector<std::byte> damaged = bytes;
    for (int flips = 0; flips < 3; ++flips) damaged[random_() % damaged.size()] ^= static_cast<std::byte>(random_());
    if (i % 4 == 0) damaged.resize(random_() % damaged.size());
    if (i % 16 == 1) damaged = random_bytes(random_() % 300, random_);
    client.say(damaged);
  }
  expect_service();
  EXPECT_EQ(local_->stat()->versions, 1u) << "a version is proved, whatever a message says";
}

TEST_F(HostileClient, WhoAsksBeforeHelloOrInManyPartsIsPutOut) {
  RawClient client(address_);
  client.say(put_message(2));
  auto reply = client.hear();
  ASSERT_TRUE(reply);
  EXPECT_EQ(error_of(*(*reply)->failed()).code(), Code::unavailable);
  client.hello();
  client.say(put_message(2), true);
  client.say(put_message(2), true);
  client.say(put_message(2));
  Builder builder;
  client.say(request(builder, 3, wire::CreateAskStat(builder)));
  expect_service();
}

TEST_F(HostileClient, ChunksThatWereNotAskedForEndTheConnection) {
  RawClient client(address_);
  client.hello();
  client.say(put_message(2));
  auto invited = client.hear();
  ASSERT_TRUE(invited && (*invited)->body_as_Upload() != nullptr);
  Builder builder;
  client.say(request(builder, 0, wire::CreateChunk(builder, 2, 7)), true);
  client.say(std::vector<std::byte>(100));
  const auto reply = client.hear();
  ASSERT_TRUE(reply && (*reply)->failed() != nullptr);
  EXPECT_EQ((*reply)->request(), 0u);
  EXPECT_EQ(error_of(*(*reply)->failed()).code(), Code::corrupt);
  expect_service();
  // The server's thread lets go of what came after it has answered.
  EXPECT_TRUE(came_true([&] { return server_->stat().upload_bytes == 0; }));
}

TEST_F(HostileClient, RangesOutsideOfTheVersionAreRefused) {
  RawClient client(address_);
  client.hello();
  const auto ask = [&](std::vector<wire::Range> ranges) {
    Builder builder;
    const auto name = rpc::put(builder, VersionName{.model = "net", .number = 1});
    const wire::Id id = wire_id(version_.manifest.id);
    client.say(request(builder, 2, wire::CreateAskBytes(builder, name, &id, builder.CreateVectorOfStructs(ranges))));
    const auto reply = client.hear();
    return reply && (*reply)->failed() != nullptr ? std::optional(error_of(*(*reply)->failed()).code()) : std::nullopt;
  };
  EXPECT_EQ(ask({{0, 100, 0}}), std::nullopt);
  EXPECT_EQ(ask({{1, 100, 0}}), Code::invalid_argument);
  EXPECT_EQ(ask({{~std::uint64_t{0}, 2, 0}}), Code::invalid_argument);
  EXPECT_EQ(ask({{0, 1, 2}}), Code::invalid_argument);
  EXPECT_EQ(ask({{0, ~std::uint64_t{0}, 0}}), Code::invalid_argument);
  EXPECT_EQ(ask({{0, 3000, 1}, {0, ~std::uint64_t{0}, 1}}), Code::invalid_argument);
}

TEST_F(HostileClient, AnswersThatNobodyReadsEndTheConnection) {
  const std::uint64_t bytes = kDataBytesMax;
  const TestVersion wide = make_version("wide", test_id(2), test_architecture({bytes}), nullptr, {}, random_);
  ASSERT_TRUE(put(*local_, wide));
  const auto over_tcp = RepositoryServer::open(*local_, {.address = "tcp://127.0.0.1:*", .security = {}});
  ASSERT_TRUE(over_tcp) << over_tcp.error().message();
  for (RepositoryServer* server : {server_.get(), over_tcp->get()}) {
    RawClient client(server->address(), /*unread_max=*/1);
    client.hello();
    std::uint64_t number = 1;
    EXPECT_TRUE(came_true([&] {
      Builder builder;
      const auto name = rpc::put(builder, VersionName{.model = "wide", .number = 1});
      const wire::Id id = wire_id(wide.manifest.id);
      const std::vector<wire::Range> ranges{{0, bytes, 0}};
      client.say(request(builder, ++number,
                         wire::CreateAskBytes(builder, name, &id, builder.CreateVectorOfStructs(ranges))));
      return server->stat().rejected > 0;
    })) << server->address();
    EXPECT_TRUE(came_true([&] { return server->stat().clients == 0; })) << server->address();
  }
  expect_service();
}

TEST_F(HostileClient, LeasesOnWhatIsNotThereAndOfOthersAreRefused) {
  RawClient client(address_);
  client.hello();
  std::uint64_t number = 1;
  const auto answer = [&](auto build) -> std::optional<Code> {
    Builder builder;
    client.say(request(builder, ++number, build(builder)));
    const auto reply = client.hear();
    return reply && (*reply)->failed() != nullptr ? std::optional(error_of(*(*reply)->failed()).code()) : std::nullopt;
  };
  const auto lend = [&](const std::vector<wire::Range>& ranges, const std::vector<wire::SegmentRange>& segments,
                        const VersionId& id = test_id(1)) {
    return answer([&](Builder& builder) {
      const auto name = rpc::put(builder, VersionName{"net", 1});
      const wire::Id wanted = wire_id(id);
      const auto list = builder.CreateVectorOfStructs(ranges);
      return wire::CreateLend(builder, name, &wanted, list, builder.CreateVectorOfStructs(segments));
    });
  };
  const wire::SegmentRange segment(wire_segment({.writer = test_id(1), .tensor = 1}), 0, 3000);
  const wire::SegmentRange unknown(wire_segment({.writer = test_id(7), .tensor = 1}), 0, 3000);
  const wire::SegmentRange far(wire_segment({.writer = test_id(1), .tensor = 1}), ~std::uint64_t{0}, 2);
  EXPECT_EQ(lend({{0, 100, 0}}, {}), std::nullopt);
  EXPECT_EQ(lend({}, {segment}), std::nullopt);
  EXPECT_EQ(lend({}, {}), Code::invalid_argument);
  EXPECT_EQ(lend({{0, 100, 0}}, {segment}), Code::invalid_argument);
  EXPECT_EQ(lend({{1, 100, 0}}, {}), Code::invalid_argument);
  EXPECT_EQ(lend({{~std::uint64_t{0}, 2, 0}}, {}), Code::invalid_argument);
  EXPECT_EQ(lend({{0, 1, 2}}, {}), Code::invalid_argument);
  EXPECT_EQ(lend({{0, 100, 0}}, {}, test_id(8)), Code::not_found);
  EXPECT_EQ(lend({}, {unknown}), Code::not_found);
  EXPECT_EQ(lend({}, {far}), Code::invalid_argument);
  EXPECT_EQ(answer([](Builder& builder) { return wire::CreateRenewLease(builder, 7); }), Code::failed_precondition);
  EXPECT_EQ(answer([](Builder& builder) { return wire::CreateEndLease(builder, 7); }), std::nullopt);
  expect_service();
}

TEST_F(HostileClient, LanesThatAreNoneAndPlacesOutsideOfThemAreRefused) {
  RawClient client(address_);
  client.hello();
  std::uint64_t number = 1;
  std::uint64_t answered = 0;
  const auto answer = [&](auto build) -> std::optional<Code> {
    Builder builder;
    client.say(request(builder, ++number, build(builder)));
    const auto reply = client.hear();
    if (!reply) return Code::timed_out;
    if ((*reply)->body_as_LaneMade() != nullptr) answered = (*reply)->body_as_LaneMade()->lane();
    if ((*reply)->body_as_Number() != nullptr) answered = (*reply)->body_as_Number()->value();
    if ((*reply)->body_as_Lent() != nullptr) answered = (*reply)->body_as_Lent()->lease();
    return (*reply)->failed() != nullptr ? std::optional(error_of(*(*reply)->failed()).code()) : std::nullopt;
  };
  const auto memory = LaneMemory::create(64 << 10);
  ASSERT_TRUE(memory) << memory.error().message();
  const LanePlace good = (*memory)->place();
  const auto offer = [&](std::int32_t pid, std::int32_t descriptor, std::uint64_t bytes, std::uint64_t high) {
    return answer([&](Builder& builder) {
      const wire::Mark mark(high, good.mark[1]);
      return wire::CreateOfferLane(builder, pid, descriptor, bytes, &mark);
    });
  };
  EXPECT_EQ(offer(good.pid, good.descriptor, good.bytes, good.mark[0] ^ 1), Code::unavailable);
  EXPECT_EQ(offer(good.pid, good.descriptor, ~std::uint64_t{0}, good.mark[0]), Code::invalid_argument);
  EXPECT_EQ(offer(good.pid, good.descriptor, good.bytes / 2, good.mark[0]), Code::corrupt);
  EXPECT_EQ(offer(-1, good.descriptor, good.bytes, good.mark[0]), Code::corrupt);
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const FileDescriptor out(ends[0]);
  const FileDescriptor in(ends[1]);
  EXPECT_EQ(offer(good.pid, out.get(), good.bytes, good.mark[0]), Code::unavailable) << "a pipe is never opened";
  EXPECT_EQ(answer([](Builder& builder) { return wire::CreateOfferLane(builder); }), Code::invalid_argument);
  EXPECT_EQ(answer([](Builder& builder) { return wire::CreateAskLane(builder, 0); }), Code::invalid_argument);
  EXPECT_EQ(answer([](Builder& builder) { return wire::CreateAskLane(builder, std::uint64_t{1} << 40); }),
            Code::invalid_argument);
  EXPECT_EQ(server_->stat().lane_room, 0u);

  ASSERT_EQ(offer(good.pid, good.descriptor, good.bytes, good.mark[0]), std::nullopt);
  const std::uint64_t theirs = answered;
  ASSERT_EQ(answer([](Builder& builder) { return wire::CreateAskLane(builder, 64 << 10); }), std::nullopt);
  const std::uint64_t ours = answered;
  ASSERT_EQ(answer([&](Builder& builder) {
              const auto name = rpc::put(builder, VersionName{"net", 1});
              const wire::Id id = wire_id(test_id(1));
              const std::vector<wire::Range> ranges = {{0, 100, 0}, {0, 3000, 1}};
              return wire::CreateLend(builder, name, &id, builder.CreateVectorOfStructs(ranges), 0, true);
            }),
            std::nullopt);
  const std::uint64_t lease = answered;
  const auto fill = [&](std::uint64_t lane, std::uint64_t at, std::uint64_t of, std::vector<wire::Range> pieces) {
    return answer([&](Builder& builder) {
      return wire::CreateFillLane(builder, lane, at, of, builder.CreateVectorOfStructs(pieces));
    });
  };
  EXPECT_EQ(fill(ours, 0, lease, {{0, 100, 0}, {0, 3000, 1}}), std::nullopt);
  EXPECT_EQ(fill(ours, (64 << 10) - 100, lease, {{0, 100, 0}}), std::nullopt);
  EXPECT_EQ(fill(ours, (64 << 10) - 99, lease, {{0, 100, 0}}), Code::invalid_argument);
  EXPECT_EQ(fill(ours, ~std::uint64_t{0}, lease, {{0, 100, 0}}), Code::invalid_argument);
  EXPECT_EQ(fill(ours, 0, lease, {{0, ~std::uint64_t{0}, 0}}), Code::invalid_argument);
  EXPECT_EQ(fill(ours, 0, lease, {{0, 101, 0}}), Code::invalid_argument);
  EXPECT_EQ(fill(ours, 0, lease, {{~std::uint64_t{0}, 2, 0}}), Code::invalid_argument);
  EXPECT_EQ(fill(ours, 0, lease, {{0, 1, 2}}), Code::invalid_argument);
  EXPECT_EQ(fill(ours, 0, lease ^ 1, {{0, 100, 0}}), Code::failed_precondition);
  EXPECT_EQ(fill(theirs, 0, lease, {{0, 100, 0}}), Code::not_found);
  EXPECT_EQ(fill(ours + 100, 0, lease, {{0, 100, 0}}), Code::not_found);
  expect_service();
}

TEST_F(HostileClient, WhoChangesItsLaneMeanwhileStoresNothingUnproved) {
  RawClient client(address_);
  client.hello();
  const auto memory = LaneMemory::create(64 << 10);
  ASSERT_TRUE(memory) << memory.error().message();
  const LanePlace place = (*memory)->place();
  {
    Builder builder;
    const wire::Mark mark(place.mark[0], place.mark[1]);
    client.say(request(builder, 2, wire::CreateOfferLane(builder, place.pid, place.descriptor, place.bytes, &mark)));
  }
  const auto offered = client.hear();
  ASSERT_TRUE(offered && (*offered)->body_as_Number() != nullptr);
  const std::uint64_t lane = (*offered)->body_as_Number()->value();
  // Many puts of the same bytes, which somebody flips to and fro: each is stored as it is named, or refused.
  const std::vector<std::byte> bytes = random_bytes(60'000, random_);
  std::copy(bytes.begin(), bytes.end(), (*memory)->memory().begin());
  std::jthread changer([&](const std::stop_token& stop) {
    volatile std::byte* const byte = (*memory)->memory().data() + 40'000;
    while (!stop.stop_requested()) *byte = *byte ^ std::byte{1};
  });
  int stored = 0;
  int refused = 0;
  for (std::uint64_t i = 0; i < 60; ++i) {
    TestVersion version = make_version("flip", test_id(1000 + i), test_architecture({60'000}), nullptr, {}, random_);
    version.manifest.digests[0] = digest_of(bytes);
    version.manifest.name.number = 1;
    Builder builder;
    client.say(request(builder, 10 + i, rpc::put(builder, version.manifest, Repository::PutOptions{}, lane)));
    const auto invited = client.hear();
    ASSERT_TRUE(invited && (*invited)->body_as_Upload() != nullptr);
    ASSERT_TRUE((*invited)->body_as_Upload()->by_lane());
    client.say(request(builder, 0, wire::CreateChunk(builder, 10 + i, 0, 60'000)));
    const auto answer = client.hear();
    ASSERT_TRUE(answer);
    if ((*answer)->failed() == nullptr) {
      ++stored;
    } else {
      EXPECT_EQ(error_of(*(*answer)->failed()).code(), Code::corrupt);
      ++refused;
    }
  }
  changer.request_stop();
  changer.join();
  EXPECT_EQ(stored + refused, 60);
  EXPECT_TRUE(local_->verify(std::nullopt, {})->corrupt.empty());
}

TEST_F(HostileClient, ARecordWhoseTensorsAreElsewhereThoughItHasNoneSuchIsDamaged) {
  VersionRecord record = local_->get({.model = "net"}).value();
  const auto is_read = [&](std::vector<std::uint32_t> elsewhere) {
    record.placed = Placed{.placement = 1, .attempt = 1, .elsewhere = std::move(elsewhere), .moved = {}};
    Builder builder;
    builder.Finish(rpc::put(builder, record));
    return rpc::read(*flatbuffers::GetRoot<wire::Record>(builder.GetBufferPointer())).has_value();
  };
  EXPECT_TRUE(is_read({}));
  EXPECT_TRUE(is_read({0, 1}));
  EXPECT_FALSE(is_read({2}));
  EXPECT_FALSE(is_read({1, 0}));
  EXPECT_FALSE(is_read({0xffffffff}));
}

TEST_F(HostileClient, WithKeysTheWrongOneIsRefusedAndTheRightOneAdmitted) {
  const auto make = [&](const std::string& name) {
    const auto keys = KeyPair::generate();
    EXPECT_TRUE(keys && keys->write(folder_ / name));
    return folder_ / name;
  };
  const std::string server_key = make("server");
  const std::string friend_key = make("friend");
  const std::string stranger_key = make("stranger");
  const auto guarded = RepositoryServer::open(
      *local_,
      {.address = "tcp://127.0.0.1:*", .security = {.key_file = server_key, .allow_file = friend_key + ".pub"}});
  ASSERT_TRUE(guarded) << guarded.error().message();
  const auto connect = [&](const SecurityOptions& security) {
    const auto remote = connect_repository((*guarded)->address(), {.security = security});
    return remote ? std::optional<Code>() : remote.error().code();
  };
  EXPECT_EQ(connect({.key_file = friend_key, .server_key = server_key + ".pub"}), std::nullopt);
  EXPECT_EQ(connect({.key_file = stranger_key, .server_key = server_key + ".pub"}), Code::failed_precondition);
  EXPECT_NE(connect({}), std::nullopt);
  EXPECT_NE(connect({.key_file = friend_key, .server_key = stranger_key + ".pub"}), std::nullopt);
  const auto open = RepositoryServer::open(*local_, {.address = "tcp://0.0.0.0:*", .security = {}});
  ASSERT_FALSE(open) << "nobody listens beyond this host without keys";
  EXPECT_EQ(open.error().code(), Code::invalid_argument);
}

}  // namespace
}  // namespace freshet
