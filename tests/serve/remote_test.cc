#include <gtest/gtest.h>

#include "repo/serve/remote_repository.h"
#include "repo/serve/server.h"
#include "tests/repo/world.h"
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
  std::unique_ptr<Repository> connect() {
    auto repository = connect_repository(address_);
    EXPECT_TRUE(repository) << repository.error().message();
    return std::move(*repository);
  }

  TemporaryFolder folder_;
  const std::string address_ = "ipc://" + folder_.path() + "/socket";
  std::mt19937_64 random_{42};
  std::shared_ptr<const Architecture> architecture_ = test_architecture({1000, 0, 7, 70000, 9'000'000});
  std::unique_ptr<Repository> local_ = open_or_die(make_memory_backend());
  std::unique_ptr<RepositoryServer> server_ = serve();
  std::unique_ptr<Repository> remote_ = connect();
};

TEST_F(RemoteTest, WhatWasPutReadsBack) {
  const TestVersion first = version(1);
  const auto name = put(*remote_, first, {.quality = 0.5});
  ASSERT_TRUE(name) << name.error().message();
  EXPECT_EQ(to_string(*name), "net@1");
  const auto local = read_all(*local_, *name);
  ASSERT_TRUE(local);
  EXPECT_EQ(*local, first.bytes);
  const auto remote = read_all(*remote_, *name);
  ASSERT_TRUE(remote) << remote.error().message();
  EXPECT_EQ(*remote, first.bytes);
  EXPECT_EQ(remote_->get(*name)->quality, 0.5);
}

TEST_F(RemoteTest, AServerThatIsGoneIsSaidSoAndOneThatCameBackIsFound) {
  const TestVersion first = version(1);
  ASSERT_TRUE(put(*remote_, first));
  server_.reset();
  const auto gone = remote_->latest("net");
  ASSERT_FALSE(gone);
  EXPECT_EQ(gone.error().code(), Code::unavailable) << gone.error().message();
  server_ = serve();
  EXPECT_EQ(remote_->latest("net").value(), 1u);
}

}  // namespace
}  // namespace freshet
