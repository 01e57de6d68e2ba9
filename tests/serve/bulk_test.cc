/// Large reads through the data channels of a repository's server, and what becomes of them when these fail.

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "repo/serve/remote_repository.h"
#include "repo/serve/server.h"
#include "tests/repo/world.h"
#include "tests/support/temporary_folder.h"
#include "transport/channel/ucx/ucx_channel.h"

namespace freshet {
namespace {

bool has_ucx() { return channel::ucx_version().has_value(); }

class BulkTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (GetParam() == "ucx" && !has_ucx()) GTEST_SKIP() << "no libucp here";
    ASSERT_TRUE(put(*local_, version_));
  }
  std::unique_ptr<RepositoryServer> serve(RepositoryServerOptions options = {}) {
    options.address = "tcp://127.0.0.1:*";
    if (options.channels == "auto") options.channels = GetParam();
    auto server = RepositoryServer::open(*local_, options);
    EXPECT_TRUE(server) << server.error().message();
    return std::move(*server);
  }
  std::unique_ptr<Repository> connect(const RepositoryServer& server, const std::string& channels = "auto") {
    auto repository = connect_repository(server.address(), {.channels = channels});
    EXPECT_TRUE(repository) << repository.error().message();
    return std::move(*repository);
  }

  std::mt19937_64 random_{3};
  std::shared_ptr<const Architecture> architecture_ = test_architecture({1000, 0, 7, 3'000'001, 70000, 9'000'000});
  std::unique_ptr<Repository> local_ = open_or_die(make_memory_backend());
  const TestVersion version_ = make_version("net", test_id(1), architecture_, nullptr, {}, random_);
};

TEST_P(BulkTest, LargeReadsComeThroughTheChannel) {
  const auto server = serve();
  const auto remote = connect(*server);
  const auto bytes = read_all(*remote, {.model = "net"});
  ASSERT_TRUE(bytes) << bytes.error().message();
  EXPECT_EQ(*bytes, version_.bytes);
  EXPECT_GT(server->stat().channel_bytes, 12'000'000u);
}

INSTANTIATE_TEST_SUITE_P(Channels, BulkTest, testing::Values("ucx", "zmq"),
                         [](const auto& channel) { return channel.param; });

}  // namespace
}  // namespace freshet
