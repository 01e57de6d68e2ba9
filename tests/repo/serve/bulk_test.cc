// SPDX-License-Identifier: Apache-2.0
/// Large reads through the data channels of a repository's server, and what becomes of them when these fail.

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "repo/serve/remote_repository.h"
#include "repo/serve/server.h"
#include "tests/repo/serve/hooked_backend.h"
#include "tests/repo/world.h"
#include "tests/support/eventually.h"
#include "tests/support/refused.h"
#include "tests/support/temporary_folder.h"
#include "transport/channel/ucx/ucx_channel.h"
#include "transport/option_text.h"
#include "transport/security/keys.h"

namespace freshet {
namespace {

const ChannelChoice kNoChannels = std::vector<ChannelKind>{};

bool has_ucx() { return channel::ucx_version().has_value(); }

class BulkTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (GetParam() == "ucx" && !has_ucx()) GTEST_SKIP() << "no libucp here";
    ASSERT_TRUE(put(*local_, version_));
  }
  std::unique_ptr<RepositoryServer> serve(RepositoryServerOptions options = {}) {
    options.address = "tcp://127.0.0.1:*";
    if (!options.channels) options.channels = parse_channel_choice(GetParam()).value();
    auto server = RepositoryServer::open(*local_, options);
    EXPECT_TRUE(server) << server.error().message();
    return std::move(*server);
  }
  std::unique_ptr<ProviderRepository> connect(const RepositoryServer& server, const ChannelChoice& channels = {}) {
    auto repository = connect_repository(server.address(), {.channels = channels});
    EXPECT_TRUE(repository) << repository.error().message();
    return std::move(*repository);
  }

  std::uint64_t all_bytes() const {
    std::uint64_t bytes = 0;
    for (const auto& tensor : version_.bytes) bytes += tensor.size();
    return bytes;
  }

  std::mt19937_64 random_{3};
  std::shared_ptr<const Architecture> architecture_ = test_architecture({1000, 0, 7, 3'000'001, 70000, 9'000'000});
  HookedBackend* backend_ = new HookedBackend(make_memory_backend());
  std::unique_ptr<ProviderRepository> local_ = open_or_die(std::unique_ptr<Backend>(backend_));
  const TestVersion version_ = make_version("net", test_id(1), architecture_, nullptr, {}, random_);
};

TEST_P(BulkTest, LargeReadsComeThroughTheChannel) {
  const auto server = serve();
  const auto remote = connect(*server);
  const auto bytes = read_all(*remote, {.model = "net"});
  ASSERT_TRUE(bytes) << bytes.error().message();
  EXPECT_EQ(*bytes, version_.bytes);
  // A channel counts what it has sent a moment after that has come.
  EXPECT_TRUE(came_true([&] { return server->stat().channel_bytes == all_bytes(); }));
  // Again, over the connection that was kept; then segments by their names, and a part of one.
  EXPECT_EQ(read_all(*remote, {.model = "net"}).value(), version_.bytes);
  std::vector<std::byte> large(version_.bytes[5].size());
  std::vector<std::byte> small(7);
  const std::vector<ProviderRepository::SegmentRead> reads = {
      {.segment = version_.manifest.owners[5], .digest = version_.manifest.digests[5], .out = large},
      {.segment = version_.manifest.owners[2], .digest = version_.manifest.digests[2], .out = small}};
  const Status read = remote->read_segments(reads);
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(large, version_.bytes[5]);
  EXPECT_EQ(small, version_.bytes[2]);
  std::vector<std::byte> part(2'500'000);
  ASSERT_TRUE(remote->read_segment_range(version_.manifest.owners[5], 1'000'001, part));
  EXPECT_TRUE(std::equal(part.begin(), part.end(), version_.bytes[5].begin() + 1'000'001));
  EXPECT_TRUE(came_true(
      [&] { return server->stat().channel_bytes == 2 * all_bytes() + large.size() + small.size() + part.size(); }));
  EXPECT_TRUE(came_true([&] { return server->stat().leases == 0 && server->stat().staged_bytes == 0; }));
}

TEST_P(BulkTest, SmallOnesAndWhoWantsNoChannelUseTheConnection) {
  const auto server = serve();
  std::vector<std::byte> bytes(version_.bytes[4].size());
  const std::vector<Repository::TensorRead> reads = {{.tensor = 4, .out = bytes}};
  ASSERT_TRUE(connect(*server)->read(local_->get({.model = "net"}).value(), reads));
  EXPECT_EQ(bytes, version_.bytes[4]);
  EXPECT_EQ(read_all(*connect(*server, kNoChannels), {.model = "net"}).value(), version_.bytes);
  EXPECT_EQ(server->stat().channel_bytes, 0u);
  const auto without = serve({.channels = kNoChannels});
  EXPECT_EQ(read_all(*connect(*without), {.model = "net"}).value(), version_.bytes);
  EXPECT_EQ(without->stat().channel_bytes, 0u);
}

TEST_P(BulkTest, DamageIsFoundOnTheWay) {
  const auto server = serve();
  const auto remote = connect(*server);
  VersionRecord record = remote->get({.model = "net"}).value();
  record.manifest.digests[5].low ^= 1;
  std::vector<std::byte> bytes(version_.bytes[5].size());
  const std::vector<Repository::TensorRead> reads = {{.tensor = 5, .out = bytes}};
  EXPECT_EQ(remote->read(record, reads).error().code(), Code::corrupt);
  EXPECT_TRUE(came_true([&] { return server->stat().channel_bytes == bytes.size(); }));
}

TEST_P(BulkTest, WhatTheChannelDoesNotBringComesOverTheConnection) {
  const auto server = serve();
  const auto remote = connect(*server);
  // A read in the middle fails, once: the channel's, since nobody else reads.
  std::atomic<int> reads{0};
  backend_->before_reads([&] { return ++reads == 7 ? Status(fail(Code::io_error, "this once")) : Status(); });
  const auto bytes = read_all(*remote, {.model = "net"});
  ASSERT_TRUE(bytes) << bytes.error().message();
  EXPECT_EQ(*bytes, version_.bytes);
  EXPECT_LT(server->stat().channel_bytes, all_bytes());
  EXPECT_TRUE(came_true([&] { return server->stat().leases == 0 && server->stat().staged_bytes == 0; }));
}

TEST_P(BulkTest, ALeaseThatRunsOutDoesNotFailTheRead) {
  const auto server = serve({.lease = std::chrono::nanoseconds(1)});
  EXPECT_EQ(read_all(*connect(*server), {.model = "net"}).value(), version_.bytes);
}

TEST_P(BulkTest, AReadThatIsOvertakenByRetirementAndCollectionIsWhole) {
  const auto server = serve();
  const auto remote = connect(*server);
  std::atomic<int> reads{0};
  backend_->before_reads([&] {
    if (++reads != 4) return Status();
    EXPECT_TRUE(local_->retire({.model = "net", .number = 1}, {}));
    EXPECT_EQ(local_->gc({}, {}).value().freed_bytes, 0u);
    return Status();
  });
  const auto bytes = read_all(*remote, {.model = "net"});
  ASSERT_TRUE(bytes) << bytes.error().message();
  EXPECT_EQ(*bytes, version_.bytes);
  EXPECT_TRUE(came_true([&] { return server->stat().leases == 0; }));
  EXPECT_TRUE(came_true([&] { return local_->gc({}, {}).value().freed_bytes != 0; }));
}

TEST_P(BulkTest, ManyClientsShareLittleMemory) {
  const auto server = serve({.staging_bytes = 3 << 20});
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  std::atomic<bool> done{false};
  std::uint64_t most = 0;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      const auto remote = connect(*server);
      for (int n = 0; n < 3; ++n) {
        const auto bytes = read_all(*remote, {.model = "net"});
        if (bytes && *bytes == version_.bytes) ++right;
      }
    });
  }
  std::thread watch([&] {
    for (; !done; std::this_thread::yield()) most = std::max(most, server->stat().staged_bytes);
  });
  for (std::thread& thread : threads) thread.join();
  done = true;
  watch.join();
  EXPECT_EQ(right, 12);
  EXPECT_LE(most, 3u << 20);
  EXPECT_GT(server->stat().channel_bytes, 0u);
}

TEST_P(BulkTest, OneClientReadsWithSeveralThreads) {
  const auto server = serve();
  const auto remote = connect(*server);
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      const auto bytes = read_all(*remote, {.model = "net"});
      if (bytes && *bytes == version_.bytes) ++right;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 3);
}

TEST(BulkDefaults, SharedMemoryIsNoChannelOfAProvider) {
  const auto local = open_or_die(make_memory_backend());
  const auto refused = RepositoryServer::open(
      *local, {.address = "tcp://127.0.0.1:*", .channels = std::vector{ChannelKind::zmq, ChannelKind::shm}});
  ASSERT_TRUE(is_refused(refused, Code::invalid_argument));
  EXPECT_EQ(refused.error().message(), "no channel shm can be offered; there are ucx, nccl and zmq");
  const auto server = RepositoryServer::open(*local, {.address = "tcp://127.0.0.1:*"});
  ASSERT_TRUE(server);
  EXPECT_TRUE(is_refused(connect_repository((*server)->address(), {.channels = std::vector{ChannelKind::shm}}),
                         Code::invalid_argument));
}

TEST(BulkDefaults, OneReadTriesTheChannelThatIsQuicklyMadeAndManyTryAll) {
  std::mt19937_64 random(9);
  const auto local = open_or_die(make_memory_backend());
  const TestVersion version =
      make_version("net", test_id(1), test_architecture({16 << 20, 9'000'000}), nullptr, {}, random);
  ASSERT_TRUE(put(*local, version));
  const TemporaryFolder folder;
  for (const std::string& address : {std::string("tcp://127.0.0.1:*"), "ipc://" + folder.path() + "/socket"}) {
    const bool is_tcp = address.starts_with("tcp");
    std::vector<ChannelKind> kinds{ChannelKind::zmq};
    if (is_tcp && has_ucx()) kinds.insert(kinds.begin(), ChannelKind::ucx);
    const auto server = RepositoryServer::open(*local, {.address = address, .channels = kinds});
    ASSERT_TRUE(server);
    const auto remote = connect_repository((*server)->address());
    ASSERT_TRUE(remote);
    std::uint64_t bytes = 0;
    const int reads = is_tcp ? 13 : 1;
    for (int i = 0; i < reads; ++i, bytes += version.manifest.architecture->bytes()) {
      ASSERT_EQ(read_all(**remote, {.model = "net"}).value(), version.bytes);
    }
    EXPECT_TRUE(came_true([&] { return (*server)->stat().channel_bytes == bytes; })) << address;
  }
}

TEST(BulkSecurity, WithKeysTheChannelTakesThemToo) {
  const TemporaryFolder folder;
  const auto make = [&](const std::string& name) {
    const auto keys = KeyPair::generate();
    EXPECT_TRUE(keys && keys->write(folder / name));
    return folder / name;
  };
  const std::string server_key = make("server");
  const std::string friend_key = make("friend");
  std::mt19937_64 random(9);
  const auto local = open_or_die(make_memory_backend());
  const TestVersion version = make_version("net", test_id(1), test_architecture({5'000'000}), nullptr, {}, random);
  ASSERT_TRUE(put(*local, version));
  const auto server = RepositoryServer::open(
      *local, {.address = "tcp://0.0.0.0:*", .security = {.key_file = server_key, .allow_file = friend_key + ".pub"}});
  ASSERT_TRUE(server) << server.error().message();
  const auto remote = connect_repository((*server)->address(),
                                         {.security = {.key_file = friend_key, .server_key = server_key + ".pub"}});
  ASSERT_TRUE(remote) << remote.error().message();
  EXPECT_EQ(read_all(**remote, {.model = "net"}).value(), version.bytes);
  EXPECT_TRUE(came_true([&] { return (*server)->stat().channel_bytes == 5'000'000u; }));
}

INSTANTIATE_TEST_SUITE_P(Channels, BulkTest, testing::Values("ucx", "zmq"),
                         [](const auto& channel) { return channel.param; });

}  // namespace
}  // namespace freshet
