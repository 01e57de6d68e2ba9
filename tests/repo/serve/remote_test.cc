// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <stop_token>
#include <thread>

#include "repo/serve/remote_repository.h"
#include "repo/serve/server.h"
#include "tests/repo/world.h"
#include "tests/support/eventually.h"
#include "tests/support/refused.h"
#include "tests/support/temporary_folder.h"

namespace freshet {
namespace {

/// A repository in memory, offered on a socket, and a client of it.
class RemoteTest : public testing::Test {
 protected:
  TestVersion version(std::uint64_t sequence, const TestVersion* base = nullptr,
                      const std::vector<std::uint32_t>& changed = {}) {
    return make_version("net", test_id(sequence), architecture_, base, changed, random_);
  }
  std::unique_ptr<RepositoryServer> serve() {
    auto server = RepositoryServer::open(*local_, {.address = address_});
    EXPECT_TRUE(server) << server.error().message();
    return std::move(*server);
  }
  std::unique_ptr<ProviderRepository> connect() {
    auto repository = connect_repository(address_);
    EXPECT_TRUE(repository) << repository.error().message();
    return std::move(*repository);
  }

  TemporaryFolder folder_;
  const std::string address_ = "ipc://" + folder_.path() + "/socket";
  std::mt19937_64 random_{42};
  std::shared_ptr<const Architecture> architecture_ = test_architecture({1000, 0, 7, 70000, 9'000'000});
  std::unique_ptr<ProviderRepository> local_ = open_or_die(make_memory_backend());
  std::unique_ptr<RepositoryServer> server_ = serve();
  std::unique_ptr<ProviderRepository> remote_ = connect();
};

TEST_F(RemoteTest, AStopEndsTheWaitForTheLastClients) {
  ASSERT_TRUE(came_true([&] { return server_->stat().clients == 1; }));
  std::stop_source early;
  early.request_stop();
  server_->drain(std::chrono::hours(1), early.get_token());
  std::stop_source late;
  std::thread stops([&late] { late.request_stop(); });
  server_->drain(std::chrono::hours(1), late.get_token());
  stops.join();
  EXPECT_EQ(server_->stat().clients, 1U);
}

TEST_F(RemoteTest, EveryQuestionHasTheAnswerOfTheRepositoryItself) {
  const TestVersion first = version(1);
  const TestVersion second = version(2, &first, {1, 2});
  const TestVersion third = version(3, &first, {0});
  ASSERT_TRUE(put(*remote_, first, {.quality = 0.5}));
  ASSERT_TRUE(put(*remote_, second));
  ASSERT_TRUE(put(*remote_, third, {.quality = 0.25}));
  const VersionName newest{.model = "net", .number = 3};
  const VersionName older{.model = "net", .number = 2};
  EXPECT_EQ(remote_->models().value(), local_->models().value());
  EXPECT_EQ(remote_->latest("net").value(), 3u);
  EXPECT_EQ(remote_->find(second.manifest.id).value(), older);
  EXPECT_EQ(remote_->find(test_id(77)).value(), std::nullopt);
  EXPECT_EQ(remote_->mrca(newest, older).value(), local_->mrca(newest, older).value());
  EXPECT_EQ(remote_->lineage(newest)->size(), 2u);
  EXPECT_EQ(remote_->lineage(newest)->front().quality, 0.25);
  EXPECT_EQ(remote_->descendants({.model = "net", .number = 1})->size(), 2u);
  EXPECT_EQ(remote_->versions("net")->size(), 3u);
  EXPECT_EQ(remote_->owners(newest)->at(0).segment, local_->owners(newest)->at(0).segment);
  EXPECT_EQ(remote_->contributors(newest)->at(1).tensors, local_->contributors(newest)->at(1).tensors);
  EXPECT_EQ(remote_->diff(older, newest)->tensors_changed.size(), local_->diff(older, newest)->tensors_changed.size());
  EXPECT_EQ(remote_->stat()->live_bytes, local_->stat()->live_bytes);
  std::uint64_t seen = 0;
  const auto report = remote_->verify(std::nullopt, [&](std::uint64_t done, std::uint64_t) { seen = done; });
  ASSERT_TRUE(report) << report.error().message();
  EXPECT_EQ(report->checked_bytes, local_->stat()->live_bytes);
  EXPECT_TRUE(remote_->pin(newest, "me"));
  EXPECT_EQ(local_->pins(newest).value(), std::vector<std::string>{"me"});
  EXPECT_TRUE(remote_->unpin(newest, "me"));
  EXPECT_TRUE(remote_->set_alias("net", "best", 0, 3));
  EXPECT_EQ(remote_->aliases("net").value(), local_->aliases("net").value());
  MatchQuery query{.graph = MatchGraph::of(*architecture_), .top = 5};
  EXPECT_EQ(remote_->match(query)->top, local_->match(query)->top);
  query.pin_by = "worker";
  ASSERT_TRUE(remote_->match(query));
  EXPECT_EQ(local_->pins({.model = "net", .number = 1}).value(), std::vector<std::string>{"worker"});
}

/// Each of its tensors is a step of verify's progress: more than fit into a connection at once.
TEST_F(RemoteTest, AnAnswerAfterThousandsOfStepsComes) {
  architecture_ = test_architecture(std::vector<std::uint64_t>(3000, 4));
  ASSERT_TRUE(put(*local_, version(1)));
  for (int round = 0; round < 20; ++round) {
    const auto report = remote_->verify(std::nullopt, [](std::uint64_t, std::uint64_t) {});
    ASSERT_TRUE(report) << "round " << round << ": " << report.error().message();
    EXPECT_TRUE(report->corrupt.empty());
  }
}

TEST_F(RemoteTest, ErrorsComeWithTheirCodesAndTexts) {
  const TestVersion first = version(1);
  ASSERT_TRUE(put(*remote_, first));
  const auto same = [](const auto& remote, const auto& local) {
    ASSERT_FALSE(remote || local);
    EXPECT_EQ(remote.error().code(), local.error().code());
    EXPECT_EQ(remote.error().message(), local.error().message());
  };
  same(remote_->get({.model = "net", .number = 7}), local_->get({.model = "net", .number = 7}));
  same(remote_->latest("other"), local_->latest("other"));
  same(remote_->unpin({.model = "net"}, "me"), local_->unpin({.model = "net"}, "me"));
  same(put(*remote_, first), put(*local_, first));
  TestVersion torn = version(2);
  torn.bytes[3][5] ^= std::byte{1};
  same(put(*remote_, torn), put(*local_, torn));
}

TEST_F(RemoteTest, APutWhoseCallerHasNoBytesLeavesNothing) {
  const TestVersion first = version(1);
  EXPECT_TRUE(is_refused(remote_->put(first.manifest,
                                      [&](std::uint32_t tensor) -> Result<Bytes> {
                                        if (tensor == 3) return fail(Code::io_error, "the file is gone");
                                        return Bytes(first.bytes[tensor]);
                                      },
                                      {}),
                         Code::io_error));
  EXPECT_TRUE(remote_->models()->empty());
  EXPECT_TRUE(put(*remote_, first));
  // The server's thread lets go of what came after it has answered.
  EXPECT_TRUE(came_true([&] { return server_->stat().upload_bytes == 0; }));
}

/// An invitation costs a way to the client and back.
TEST_F(RemoteTest, TensorsThatAreSmallTogetherComeWithTheQuestion) {
  ASSERT_TRUE(came_true([&] { return server_->stat().calls == 0; }));
  const auto calls_beside = [&](std::uint64_t last_bytes) {
    architecture_ = test_architecture({1000, 0, 7, last_bytes});
    const TestVersion one = version(last_bytes);
    std::size_t calls = 0;
    const auto name = remote_->put(one.manifest,
                                   [&](std::uint32_t tensor) -> Result<Bytes> {
                                     calls = std::max(calls, server_->stat().calls);
                                     return Bytes(one.bytes[tensor]);
                                   },
                                   {});
    EXPECT_TRUE(name) << name.error().message();
    return calls;
  };
  EXPECT_EQ(calls_beside(31'761), 0U) << "32 KiB";
  EXPECT_EQ(calls_beside(31'762), 1U) << "the server asked for them";
}

TEST_F(RemoteTest, ManyClientsPutAndReadAtOnce) {
  std::vector<std::thread> threads;
  std::vector<TestVersion> versions;
  for (std::uint64_t i = 1; i <= 4; ++i) {
    versions.push_back(make_version("net" + std::to_string(i), test_id(i), architecture_, nullptr, {}, random_));
  }
  for (const TestVersion& one : versions) {
    threads.emplace_back([this, &one] {
      const auto mine = connect_repository(address_);
      ASSERT_TRUE(mine) << mine.error().message();
      const auto name = put(**mine, one);
      ASSERT_TRUE(name) << name.error().message();
      EXPECT_EQ(read_all(**mine, *name).value(), one.bytes);
      EXPECT_EQ(read_all(*remote_, *name).value(), one.bytes);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(local_->stat()->versions, 4u);
}

TEST_F(RemoteTest, AServerThatIsGoneIsSaidSoAndOneThatCameBackIsFound) {
  const TestVersion first = version(1);
  ASSERT_TRUE(put(*remote_, first));
  server_.reset();
  EXPECT_TRUE(is_refused(remote_->latest("net"), Code::unavailable));
  server_ = serve();
  EXPECT_EQ(remote_->latest("net").value(), 1u);
}

}  // namespace
}  // namespace freshet
