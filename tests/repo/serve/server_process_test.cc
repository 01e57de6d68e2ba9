// SPDX-License-Identifier: Apache-2.0
/// Servers that are stopped or killed, in a process of their own.

#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <thread>

#include "repo/serve/remote_repository.h"
#include "repo/serve/server.h"
#include "tests/repo/world.h"
#include "tests/support/child_process.h"
#include "tests/support/eventually.h"
#include "tests/support/refused.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/this_build.h"
#include "transport/channel/ucx/ucx_channel.h"

namespace freshet {
namespace {

class ServerProcess : public testing::Test {
 protected:
  void start() {
    child_ =
        std::make_unique<ChildProcess>(std::vector<std::string>{test::built(FRESHET_SERVE_PEER), address_, channels_});
    ASSERT_EQ(child_->line(), "ready");
  }
  std::unique_ptr<ProviderRepository> connect() {
    auto repository = connect_repository(address_, {.silence = std::chrono::seconds(1)});
    EXPECT_TRUE(repository) << repository.error().message();
    return std::move(*repository);
  }

  std::string channels_ = "auto";
  TemporaryFolder folder_;
  const std::string address_ = "ipc://" + folder_.path() + "/socket";
  std::mt19937_64 random_{7};
  std::shared_ptr<const Architecture> architecture_ = test_architecture({6'000'000, 1000, 6'000'000});
  std::unique_ptr<ChildProcess> child_;
};

TEST_F(ServerProcess, OneThatIsStoppedIsNoticedAndFoundAgain) {
  start();
  const auto repository = connect();
  EXPECT_TRUE(repository->models()->empty());
  child_->stop();
  EXPECT_TRUE(is_refused(repository->models(), Code::unavailable));
  child_->go_on();
  const auto again = repository->models();
  EXPECT_TRUE(again) << again.error().message();
}

TEST_F(ServerProcess, OneThatIsKilledInTheMiddleOfAPutEndsIt) {
  start();
  const auto repository = connect();
  const TestVersion version = make_version("net", test_id(1), architecture_, nullptr, {}, random_);
  EXPECT_TRUE(is_refused(repository->put(version.manifest,
                                         [&](std::uint32_t tensor) -> Result<Bytes> {
                                           if (tensor == 2) child_->end(SIGKILL);
                                           return Bytes(version.bytes[tensor]);
                                         },
                                         {}),
                         Code::unavailable));
  start();
  const auto models = repository->models();
  ASSERT_TRUE(models) << models.error().message();
  EXPECT_TRUE(models->empty());
  EXPECT_TRUE(put(*repository, version));
  EXPECT_EQ(read_all(*repository, {.model = "net"}).value(), version.bytes);
}

TEST_F(ServerProcess, OneThatIsKilledWhileItIsReadEndsTheRead) {
  start();
  const auto repository = connect();
  const TestVersion version = make_version("net", test_id(1), architecture_, nullptr, {}, random_);
  ASSERT_TRUE(put(*repository, version));
  std::atomic<int> reads{0};
  Status last;
  std::thread reader([&] {
    while (last) {
      const auto bytes = read_all(*repository, {.model = "net"});
      if (!bytes) last = fail(bytes.error());
      ++reads;
    }
  });
  EXPECT_TRUE(came_true([&] { return reads >= 2; }));
  child_->end(SIGKILL);
  reader.join();
  EXPECT_EQ(last.error().code(), Code::unavailable) << last.error().message();
}

/// The client is the child here.
TEST_F(ServerProcess, AClientThatIsKilledInTheMiddleOfAPutLeavesNothing) {
  const auto local = open_or_die(make_memory_backend());
  const auto server = RepositoryServer::open(*local, {.address = address_});
  ASSERT_TRUE(server) << server.error().message();
  child_ = std::make_unique<ChildProcess>(std::vector<std::string>{test::built(FRESHET_SERVE_PEER), address_, "put"});
  ASSERT_EQ(child_->line(), "half");
  EXPECT_TRUE(came_true([&] { return (*server)->stat().upload_bytes != 0; }));
  child_->end(SIGKILL);
  EXPECT_TRUE(came_true([&] { return (*server)->stat().clients == 0; }));
  EXPECT_TRUE(came_true([&] { return (*server)->stat().upload_bytes == 0; }));
  EXPECT_TRUE(local->models()->empty());
  // What it was storing is nobody's: another one stores the same version.
  const TestVersion version = make_version("net", test_id(1), architecture_, nullptr, {}, random_);
  const auto repository = connect();
  ASSERT_TRUE(put(*repository, version));
  EXPECT_EQ(read_all(*repository, {.model = "net"}).value(), version.bytes);
}

class ChannelProcess : public ServerProcess, public testing::WithParamInterface<std::string> {
 protected:
  void SetUp() override {
    if (GetParam() == "ucx" && !channel::ucx_version()) GTEST_SKIP() << "no libucp here";
    channels_ = GetParam();
    start();
  }
};

TEST_P(ChannelProcess, AReadThroughAChannelEndsWithTheServer) {
  for (const bool killed : {false, true}) {
    const auto repository = connect();
    const TestVersion version =
        make_version(killed ? "b" : "a", test_id(killed ? 2 : 1), architecture_, nullptr, {}, random_);
    ASSERT_TRUE(put(*repository, version));
    std::atomic<int> reads{0};
    Status last;
    std::thread reader([&] {
      while (last) {
        const auto bytes = read_all(*repository, {.model = version.manifest.name.model});
        if (!bytes) last = fail(bytes.error());
        if (bytes) {
          EXPECT_EQ(*bytes, version.bytes);
        }
        ++reads;
      }
    });
    EXPECT_TRUE(came_true([&] { return reads >= 2; }));
    if (killed) {
      child_->end(SIGKILL);
    } else {
      child_->stop();
    }
    reader.join();
    EXPECT_EQ(last.error().code(), Code::unavailable) << last.error().message();
    if (killed) continue;
    child_->go_on();
    EXPECT_EQ(read_all(*repository, {.model = "a"}).value(), version.bytes);
  }
}

INSTANTIATE_TEST_SUITE_P(Channels, ChannelProcess, testing::Values("ucx", "zmq"),
                         [](const auto& channel) { return channel.param; });

}  // namespace
}  // namespace freshet
