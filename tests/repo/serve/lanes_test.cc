// SPDX-License-Identifier: Apache-2.0
/// Puts and reads through memory that client and server share, and what becomes of them when something fails.

#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "repo/serve/remote_repository.h"
#include "repo/serve/server.h"
#include "tests/repo/serve/hooked_backend.h"
#include "tests/repo/world.h"
#include "tests/support/eventually.h"
#include "tests/support/temporary_folder.h"
#include "transport/security/keys.h"

namespace freshet {
namespace {

class LanesTest : public testing::Test {
 protected:
  std::unique_ptr<RepositoryServer> serve(RepositoryServerOptions options = {.channels = "auto,shm"}) {
    options.address = address_;
    auto server = RepositoryServer::open(*local_, options);
    EXPECT_TRUE(server) << server.error().message();
    return std::move(*server);
  }
  std::unique_ptr<ProviderRepository> connect(const RepositoryServer& server, const std::string& channels = "auto") {
    auto repository = connect_repository(server.address(), {.channels = channels});
    EXPECT_TRUE(repository) << repository.error().message();
    return std::move(*repository);
  }
  TestVersion version(std::uint64_t sequence, const std::string& model = "net") {
    return make_version(model, test_id(sequence), architecture_, nullptr, {}, random_);
  }

  TemporaryFolder folder_;
  std::string address_ = "ipc://" + folder_.path() + "/socket";
  std::mt19937_64 random_{20261122};
  // Some are longer than half of a lane, one longer than all of it.
  std::shared_ptr<const Architecture> architecture_ =
      test_architecture({1000, 0, 7, 3'000'001, 70000, 9'000'000, 600'000, 5'000'000});
  HookedBackend* backend_ = new HookedBackend(make_memory_backend());
  std::unique_ptr<ProviderRepository> local_ = open_or_die(std::unique_ptr<Backend>(backend_));
};

TEST_F(LanesTest, TensorsComeAndGoByThem) {
  for (const std::string& address : {address_, std::string("tcp://127.0.0.1:*")}) {
    address_ = address;
    const auto server = serve();
    const auto remote = connect(*server);
    const std::string model = address.starts_with("tcp") ? "tcp" : "ipc";
    const TestVersion first = version(model == "tcp" ? 1 : 3, model);
    const TestVersion second = version(model == "tcp" ? 2 : 4, model);
    const std::uint64_t bytes = architecture_->bytes();
    for (const TestVersion* one : {&first, &second}) {
      const auto name = put(*remote, *one);
      ASSERT_TRUE(name) << name.error().message();
      EXPECT_EQ(read_all(*local_, *name).value(), one->bytes);
    }
    EXPECT_EQ(server->stat().lane_bytes, 2 * bytes);
    EXPECT_EQ(read_all(*remote, {.model = model, .number = 1}).value(), first.bytes);
    EXPECT_EQ(read_all(*remote, {.model = model, .number = 2}).value(), second.bytes);
    EXPECT_EQ(server->stat().lane_bytes, 4 * bytes);
    EXPECT_EQ(server->stat().channel_bytes, 0u);
    // Segments by their names, and a part of one.
    std::vector<std::byte> large(second.bytes[5].size());
    std::vector<std::byte> small(7);
    const std::vector<ProviderRepository::SegmentRead> reads = {
        {.segment = second.manifest.owners[5], .digest = second.manifest.digests[5], .out = large},
        {.segment = second.manifest.owners[2], .digest = second.manifest.digests[2], .out = small}};
    ASSERT_TRUE(remote->read_segments(reads));
    EXPECT_EQ(large, second.bytes[5]);
    EXPECT_EQ(small, second.bytes[2]);
    std::vector<std::byte> part(2'500'000);
    ASSERT_TRUE(remote->read_segment_range(second.manifest.owners[5], 1'000'001, part));
    EXPECT_TRUE(std::equal(part.begin(), part.end(), second.bytes[5].begin() + 1'000'001));
    EXPECT_EQ(server->stat().lane_bytes, 4 * bytes + large.size() + small.size() + part.size());
    EXPECT_TRUE(came_true([&] { return server->stat().leases == 0 && server->stat().upload_bytes == 0; }));
  }
}

TEST_F(LanesTest, LittleAndWhoWantsNoneUsesTheConnection) {
  const auto server = serve();
  const auto remote = connect(*server);
  const TestVersion small = make_version("small", test_id(1), test_architecture({70000, 5}), nullptr, {}, random_);
  ASSERT_TRUE(put(*remote, small));
  EXPECT_EQ(read_all(*remote, {.model = "small"}).value(), small.bytes);
  std::uint64_t sequence = 1;
  for (const std::string channels : {"none", "zmq"}) {
    const auto other = connect(*server, channels);
    const TestVersion large = version(++sequence, channels);
    ASSERT_TRUE(put(*other, large));
    EXPECT_EQ(read_all(*other, {.model = channels}).value(), large.bytes);
  }
  EXPECT_EQ(server->stat().lane_bytes, 0u);
  EXPECT_EQ(server->stat().lane_room, 0u);
}

TEST_F(LanesTest, AServerOffersThemOrNot) {
  std::uint64_t sequence = 0;
  for (const auto& [channels, has_lanes] : std::vector<std::pair<std::string, bool>>{
           {"none", false}, {"zmq", false}, {"auto", false}, {"shm", true}, {"zmq,shm", true}, {"auto,shm", true}}) {
    const auto server = serve({.channels = channels});
    const auto remote = connect(*server);
    ++sequence;
    const TestVersion large = version(sequence, "net" + std::to_string(sequence));
    ASSERT_TRUE(put(*remote, large)) << channels;
    EXPECT_EQ(read_all(*remote, {.model = large.manifest.name.model}).value(), large.bytes) << channels;
    EXPECT_EQ(server->stat().lane_bytes, has_lanes ? 2 * architecture_->bytes() : 0) << channels;
  }
}

TEST_F(LanesTest, WithKeysThereAreNone) {
  const auto make = [&](const std::string& name) {
    const auto keys = KeyPair::generate();
    EXPECT_TRUE(keys && keys->write(folder_ / name));
    return folder_ / name;
  };
  const std::string server_key = make("server");
  const std::string friend_key = make("friend");
  address_ = "tcp://127.0.0.1:*";
  std::ofstream(folder_ / "allow") << "writer " << read_public_key(friend_key + ".pub")->text() << "\n";
  const auto server =
      serve({.security = {.key_file = server_key, .allow_file = folder_ / "allow"}, .channels = "auto,shm"});
  const auto remote =
      connect_repository(server->address(), {.security = {.key_file = friend_key, .server_key = server_key + ".pub"}});
  ASSERT_TRUE(remote) << remote.error().message();
  const TestVersion large = version(1);
  ASSERT_TRUE(put(**remote, large));
  EXPECT_EQ(read_all(**remote, {.model = "net"}).value(), large.bytes);
  EXPECT_EQ(server->stat().lane_bytes, 0u);
}

TEST_F(LanesTest, ManyThreadsShareAConnectionAndFewLanes) {
  const auto server = serve();
  const auto remote = connect(*server);
  std::vector<TestVersion> versions;
  for (std::uint64_t i = 0; i < 6; ++i) versions.push_back(version(i + 1, "net" + std::to_string(i)));
  std::atomic<int> right{0};
  std::vector<std::jthread> threads;
  for (const TestVersion& one : versions) {
    threads.emplace_back([&] {
      if (!put(*remote, one)) return;
      const auto bytes = read_all(*remote, {.model = one.manifest.name.model});
      if (bytes && *bytes == one.bytes) ++right;
    });
  }
  threads.clear();
  EXPECT_EQ(right, 6);
  EXPECT_GT(server->stat().lane_bytes, 0u);
  EXPECT_LE(server->stat().lane_room, 8u << 23);
}

TEST_F(LanesTest, BytesThatAreNotThoseOfTheManifestAreRefused) {
  const auto server = serve();
  const auto remote = connect(*server);
  TestVersion damaged = version(1);
  damaged.manifest.digests[3].low ^= 1;
  const auto name = put(*remote, damaged);
  ASSERT_FALSE(name);
  EXPECT_EQ(name.error().code(), Code::corrupt) << name.error().message();
  EXPECT_EQ(local_->stat()->versions, 0u);
  damaged.manifest.digests[3].low ^= 1;
  EXPECT_TRUE(put(*remote, damaged)) << "the lane goes on";
  VersionRecord record = remote->get({.model = "net"}).value();
  record.manifest.digests[5].low ^= 1;
  std::vector<std::byte> bytes(damaged.bytes[5].size());
  const std::vector<Repository::TensorRead> reads = {{.tensor = 5, .out = bytes}};
  EXPECT_EQ(remote->read(record, reads).error().code(), Code::corrupt);
  EXPECT_TRUE(came_true([&] { return server->stat().upload_bytes == 0; }));
}

TEST_F(LanesTest, AClientThatHasNotTheBytesLeavesNothing) {
  const auto server = serve();
  const auto remote = connect(*server);
  const TestVersion one = version(1);
  const auto bytes_of = [&](std::uint32_t tensor) -> Result<Bytes> {
    if (tensor == 7) return fail(Code::io_error, "gone");
    return Bytes(one.bytes[tensor]);
  };
  const auto name = remote->put(one.manifest, bytes_of, {});
  ASSERT_FALSE(name);
  EXPECT_EQ(name.error().code(), Code::io_error) << name.error().message();
  EXPECT_TRUE(came_true([&] { return server->stat().upload_bytes == 0 && server->stat().calls == 0; }));
  EXPECT_EQ(local_->stat()->versions, 0u);
  ASSERT_TRUE(put(*remote, one));
  EXPECT_EQ(read_all(*remote, {.model = "net"}).value(), one.bytes);
}

TEST_F(LanesTest, SiblingsAsDifferencesComeByThemToo) {
  const auto server = serve();
  const auto remote = connect(*server);
  const TestVersion first = version(1);
  ASSERT_TRUE(put(*remote, first));
  std::vector<std::uint32_t> all(first.bytes.size());
  for (std::uint32_t i = 0; i < all.size(); ++i) all[i] = i;
  TestVersion second = make_version("net", test_id(2), architecture_, &first, all, random_);
  for (std::uint32_t i = 0; i < all.size(); ++i) {
    second.bytes[i] = first.bytes[i];
    if (!second.bytes[i].empty()) second.bytes[i].front() ^= std::byte{1};
    second.manifest.digests[i] = digest_of(second.bytes[i]);
  }
  ASSERT_TRUE(put(*remote, second, {.deltas = true}));
  EXPECT_EQ(read_all(*remote, {.model = "net", .number = 2}).value(), second.bytes);
  EXPECT_TRUE(local_->verify(std::nullopt, {})->corrupt.empty());
}

TEST_F(LanesTest, WhatALaneDoesNotBringComesOverTheConnection) {
  const auto server = serve();
  const auto remote = connect(*server);
  const TestVersion one = version(1);
  ASSERT_TRUE(put(*local_, one));
  std::atomic<int> reads{0};
  backend_->before_reads([&] { return ++reads == 7 ? Status(fail(Code::io_error, "this once")) : Status(); });
  const auto bytes = read_all(*remote, {.model = "net"});
  ASSERT_TRUE(bytes) << bytes.error().message();
  EXPECT_EQ(*bytes, one.bytes);
  EXPECT_TRUE(came_true([&] { return server->stat().leases == 0; }));
  EXPECT_EQ(read_all(*remote, {.model = "net"}).value(), one.bytes);
}

TEST_F(LanesTest, ALeaseThatRunsOutDoesNotFailTheRead) {
  const auto server = serve({.channels = "auto,shm", .lease = std::chrono::nanoseconds(1)});
  const TestVersion one = version(1);
  ASSERT_TRUE(put(*local_, one));
  EXPECT_EQ(read_all(*connect(*server), {.model = "net"}).value(), one.bytes);
}

TEST_F(LanesTest, AReadThatIsOvertakenByRetirementAndCollectionIsWhole) {
  const auto server = serve();
  const auto remote = connect(*server);
  const TestVersion one = version(1);
  ASSERT_TRUE(put(*local_, one));
  std::atomic<int> reads{0};
  backend_->before_reads([&] {
    if (++reads != 4) return Status();
    EXPECT_TRUE(local_->retire({.model = "net", .number = 1}, {}));
    EXPECT_EQ(local_->gc({}, {}).value().freed_bytes, 0u);
    return Status();
  });
  const auto bytes = read_all(*remote, {.model = "net"});
  ASSERT_TRUE(bytes) << bytes.error().message();
  EXPECT_EQ(*bytes, one.bytes);
  EXPECT_TRUE(came_true([&] { return server->stat().leases == 0; }));
  EXPECT_TRUE(came_true([&] { return local_->gc({}, {}).value().freed_bytes != 0; }));
}

/// What a put inherits goes while its tensors come: the server asks again, for everything that it then needs.
TEST_F(LanesTest, APutWhoseInheritanceIsRetiredMeanwhileGoesOn) {
  const auto server = serve();
  const auto remote = connect(*server);
  std::uint64_t sequence = 0;
  for (const std::uint64_t bytes : {std::uint64_t{1000}, std::uint64_t{3'000'000}}) {
    const std::string name = "race" + std::to_string(bytes);
    const auto architecture = test_architecture({bytes, bytes, bytes});
    const TestVersion old = make_version(name + "old", test_id(++sequence), architecture, nullptr, {}, random_);
    ASSERT_TRUE(put(*remote, old));
    TestVersion mixed = make_version(name, test_id(++sequence), architecture, nullptr, {}, random_);
    std::vector<SegmentName> owners;
    for (std::uint32_t i = 0; i < 3; ++i) owners.push_back({.writer = mixed.manifest.id, .tensor = i});
    owners[0] = {.writer = old.manifest.id, .tensor = 0};
    mixed.bytes[0] = old.bytes[0];
    mixed.manifest.digests[0] = old.manifest.digests[0];
    mixed.manifest.owners = OwnerMap(std::move(owners));
    std::vector<std::uint32_t> asked;
    const auto stored = remote->put(mixed.manifest,
                                    [&](std::uint32_t tensor) -> Result<Bytes> {
                                      asked.push_back(tensor);
                                      if (asked.size() == 2) {
                                        EXPECT_TRUE(local_->retire({.model = name + "old", .number = 1}, {}));
                                        EXPECT_TRUE(local_->gc({}, {}));
                                      }
                                      return Bytes(mixed.bytes[tensor]);
                                    },
                                    {});
    ASSERT_TRUE(stored) << stored.error().message();
    EXPECT_EQ(read_all(*remote, *stored).value(), mixed.bytes);
    EXPECT_EQ(std::ranges::count(asked, 0u), 1);
  }
  EXPECT_TRUE(local_->verify(std::nullopt, {})->corrupt.empty());
  EXPECT_TRUE(came_true([&] { return server->stat().upload_bytes == 0; }));
}

TEST_F(LanesTest, AServerThatEndsInTheMiddleOfAPutEndsIt) {
  auto server = serve();
  const auto remote = connect(*server);
  const TestVersion one = version(1);
  const auto bytes_of = [&](std::uint32_t tensor) -> Result<Bytes> {
    if (tensor == 5) server.reset();
    return Bytes(one.bytes[tensor]);
  };
  const auto name = remote->put(one.manifest, bytes_of, {});
  ASSERT_FALSE(name);
  EXPECT_EQ(name.error().code(), Code::unavailable) << name.error().message();
  EXPECT_EQ(local_->stat()->versions, 0u);
  server = serve();
  ASSERT_TRUE(put(*remote, one));
  EXPECT_EQ(read_all(*remote, {.model = "net"}).value(), one.bytes);
}

}  // namespace
}  // namespace freshet
