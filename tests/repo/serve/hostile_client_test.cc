// SPDX-License-Identifier: Apache-2.0
/// Clients that say what none of ours does: the server goes on serving the others.

#include <gtest/gtest.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/format.h"
#include "repo/serve/remote_repository.h"
#include "repo/serve/server.h"
#include "tests/repo/serve/raw_client.h"
#include "tests/repo/world.h"
#include "tests/support/eventually.h"
#include "tests/support/refused.h"
#include "tests/support/temporary_folder.h"
#include "transport/security/keys.h"

namespace freshet {
namespace {

using namespace rpc;

class HostileClient : public testing::Test {
 protected:
  void SetUp() override {
    auto server = RepositoryServer::open(*local_, {.address = address_, .security = {}});
    ASSERT_TRUE(server) << server.error().message();
    server_ = std::move(*server);
  }
  void expect_service() {
    const auto remote = connect_repository(address_);
    ASSERT_TRUE(remote) << remote.error().message();
    EXPECT_EQ((*remote)->latest("net").value(), 1u);
  }
  Encoded put_message(std::uint64_t number) { return request(number, put_question(test_id(99))); }
  Put put_question(const VersionId& id) {
    Manifest manifest = version_.manifest;
    manifest.id = id;
    manifest.owners = OwnerMap::all_written_by(manifest.id, manifest.digests.size());
    manifest.name.number = 1;
    return {{manifest, {}}, {}, {}, {}};
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
    client.say(rpc::hello(1));
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
  client.say(request(3, call_of<AskStat>()));
  expect_service();
}

TEST_F(HostileClient, AnOlderClientIsToldWhichProtocolIsSpokenHere) {
  RawClient client(address_);
  client.say(rpc::hello(1, kProtocolVersion - 1));
  const auto reply = client.hear();
  ASSERT_TRUE(reply && (*reply)->failed() != nullptr);
  EXPECT_EQ(error_of(*(*reply)->failed()).code(), Code::unsupported);
  EXPECT_NE(error_of(*(*reply)->failed()).message().find(format("the client {}", kProtocolVersion - 1)),
            std::string::npos);
}

TEST_F(HostileClient, ChunksThatWereNotAskedForEndTheConnection) {
  RawClient client(address_);
  client.hello();
  client.say(put_message(2));
  auto invited = client.hear();
  ASSERT_TRUE(invited && step_in<Invitation>(*invited));
  client.say(request(0, Chunk{.upload = 2, .offset = 7}), true);
  client.say(std::vector<std::byte>(100));
  const auto reply = client.hear();
  ASSERT_TRUE(reply && (*reply)->failed() != nullptr);
  EXPECT_EQ((*reply)->request(), 0u);
  EXPECT_EQ(error_of(*(*reply)->failed()).code(), Code::corrupt);
  expect_service();
  // The server's thread lets go of what came after it has answered.
  EXPECT_TRUE(came_true([&] { return server_->stat().upload_bytes == 0; }));
}

TEST_F(HostileClient, SmallTensorsThatComeWithAPutAreProvedAsOthersAre) {
  std::vector<std::byte> bytes = version_.bytes[0];
  bytes.insert(bytes.end(), version_.bytes[1].begin(), version_.bytes[1].end());
  RawClient client(address_);
  client.hello();
  std::uint64_t number = 1;
  std::vector<Digest> digests = version_.manifest.digests;
  const auto say = [&](std::vector<std::pair<std::uint32_t, std::uint64_t>> given, Bytes given_bytes) {
    Put put = put_question(test_id(100 + ++number));
    put.manifest.digests = digests;
    put.given = std::move(given);
    put.given_bytes = given_bytes;
    client.say(request(number, put));
    return client.hear();
  };
  const auto stored = say({{0, 100}, {1, 3000}}, bytes);
  ASSERT_TRUE(stored);
  EXPECT_EQ((*stored)->failed(), nullptr);
  EXPECT_FALSE(step_in<Invitation>(*stored)) << "nothing more is asked for";
  EXPECT_EQ(local_->stat()->versions, 2u);
  const auto all = Bytes(bytes);
  std::vector<std::byte> too_many = bytes;
  too_many.resize(kGivenBytesMax + 1);
  for (const auto& lacking :
       {say({{0, 100}}, all.first(100)), say({{0, 100}, {2, 3000}}, all), say({{0, 100}, {1, 3000}}, all.first(3099)),
        say({{0, ~std::uint64_t{0}}, {1, 3000}}, all), say({{0, 100}, {1, 3000}}, too_many)}) {
    EXPECT_TRUE(lacking && step_in<Invitation>(*lacking)) << "the server asks for all";
  }
  digests.assign(2, {});  // Zeros: those of the bytes that come.
  EXPECT_TRUE(say({{0, 100}, {1, 3000}}, all));
  digests = version_.manifest.digests;
  EXPECT_EQ(local_->get({.model = "net", .number = 3})->manifest.digests, digests);
  bytes[5] ^= std::byte{1};
  for (const auto& wrong : {say({{0, 100}, {1, 3000}}, all), say({{0, 99}, {1, 3001}}, all)}) {
    ASSERT_TRUE(wrong && (*wrong)->failed() != nullptr);
    EXPECT_EQ(error_of(*(*wrong)->failed()).code(), Code::corrupt);
  }
  EXPECT_EQ(local_->stat()->versions, 3u);
}

TEST_F(HostileClient, RangesOutsideOfTheVersionAreRefused) {
  RawClient client(address_);
  client.hello();
  const auto ask = [&](std::vector<ByteRange> ranges) {
    client.say(request(2, AskBytes{{.model = "net", .number = 1}, version_.manifest.id, std::move(ranges)}));
    const auto reply = client.hear();
    return reply && (*reply)->failed() != nullptr ? std::optional(error_of(*(*reply)->failed()).code()) : std::nullopt;
  };
  EXPECT_EQ(ask({{0, 0, 100}}), std::nullopt);
  EXPECT_EQ(ask({{0, 1, 100}}), Code::invalid_argument);
  EXPECT_EQ(ask({{0, ~std::uint64_t{0}, 2}}), Code::invalid_argument);
  EXPECT_EQ(ask({{2, 0, 1}}), Code::invalid_argument);
  EXPECT_EQ(ask({{0, 0, ~std::uint64_t{0}}}), Code::invalid_argument);
  EXPECT_EQ(ask({{1, 0, 3000}, {1, 0, ~std::uint64_t{0}}}), Code::invalid_argument);
}

TEST_F(HostileClient, AQuestionLongerThanItsKindIsRefusedWhenItComes) {
  RawClient client(address_);
  client.hello();
  const auto ask = [&](std::size_t name_bytes) {
    client.say(request(2, AskVerify{VersionName{.model = std::string(name_bytes, 'n'), .number = 1}}));
    const auto reply = client.hear();
    return reply && (*reply)->failed() != nullptr ? error_of(*(*reply)->failed()).message() : "";
  };
  EXPECT_NE(ask(1000).find("a model name has"), std::string::npos);
  EXPECT_NE(ask(kTextBytesMax).find("the question has"), std::string::npos);
  expect_service();
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
      client.say(request(++number,
                         AskBytes{{.model = "wide", .number = 1}, wide.manifest.id, {{.tensor = 0, .bytes = bytes}}}));
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
  const auto answer = [&](const auto& question) -> std::optional<Code> {
    client.say(request(++number, question));
    const auto reply = client.hear();
    return reply && (*reply)->failed() != nullptr ? std::optional(error_of(*(*reply)->failed()).code()) : std::nullopt;
  };
  const auto lend = [&](const std::vector<ByteRange>& ranges, const std::vector<SegmentRange>& segments,
                        const VersionId& id = test_id(1)) {
    return answer(Lend{{.model = "net", .number = 1}, id, ranges, segments});
  };
  const SegmentRange segment{{.writer = test_id(1), .tensor = 1}, 0, 3000};
  const SegmentRange unknown{{.writer = test_id(7), .tensor = 1}, 0, 3000};
  const SegmentRange far{{.writer = test_id(1), .tensor = 1}, ~std::uint64_t{0}, 2};
  EXPECT_EQ(lend({{0, 0, 100}}, {}), std::nullopt);
  EXPECT_EQ(lend({}, {segment}), std::nullopt);
  EXPECT_EQ(lend({}, {}), Code::invalid_argument);
  EXPECT_EQ(lend({{0, 0, 100}}, {segment}), Code::invalid_argument);
  EXPECT_EQ(lend({{0, 1, 100}}, {}), Code::invalid_argument);
  EXPECT_EQ(lend({{0, ~std::uint64_t{0}, 2}}, {}), Code::invalid_argument);
  EXPECT_EQ(lend({{2, 0, 1}}, {}), Code::invalid_argument);
  EXPECT_EQ(lend({{0, 0, 100}}, {}, test_id(8)), Code::not_found);
  EXPECT_EQ(lend({}, {unknown}), Code::not_found);
  EXPECT_EQ(lend({}, {far}), Code::invalid_argument);
  EXPECT_EQ(answer(RenewLease{7}), Code::failed_precondition);
  EXPECT_EQ(answer(EndLease{{7}}), std::nullopt);
  expect_service();
}

TEST_F(HostileClient, ARecordWhoseTensorsAreElsewhereThoughItHasNoneSuchIsDamaged) {
  VersionRecord record = local_->get({.model = "net"}).value();
  const auto is_read = [&](std::vector<std::uint32_t> elsewhere) {
    record.placed = Placed{.placement = 1, .attempt = 1, .elsewhere = std::move(elsewhere), .moved = {}};
    const Encoded message = answer_to<AskRecord>(2, record);
    const auto reply = Received<wire::Reply>::open(std::as_bytes(std::span(message.data(), message.size())));
    return reply && answer_in<AskRecord>(*reply);
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
  EXPECT_TRUE(is_refused(RepositoryServer::open(*local_, {.address = "tcp://0.0.0.0:*", .security = {}}),
                         Code::invalid_argument))
      << "nobody listens beyond this host without keys";
}

}  // namespace
}  // namespace freshet
