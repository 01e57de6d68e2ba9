// SPDX-License-Identifier: Apache-2.0
/// Other users of this host at a repository's loopback port without keys, connecting and listening. They are real ones:
/// these tests need root.

#include <gtest/gtest.h>

#include "repo/serve/remote_repository.h"
#include "repo/serve/server.h"
#include "repo/serve/wire/messages.h"
#include "tests/repo/world.h"
#include "tests/support/other_user.h"
#include "tests/support/refused.h"

namespace freshet {
namespace {

using namespace freshet::test;

bool is_welcome_at(const std::string& address) {
  const rpc::Encoded hello = rpc::hello(1);
  StrangeClient client(address);
  client.say("DEALER", {reinterpret_cast<const char*>(hello.data()), hello.size()});
  return client.hears();
}

class NeighbourOfRepository : public testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  }
  std::unique_ptr<RepositoryServer> open(bool open_loopback) {
    auto server =
        RepositoryServer::open(*local_, {.address = "tcp://127.0.0.1:*", .security = {.open_loopback = open_loopback}});
    EXPECT_TRUE(server) << server.error().message();
    return server ? std::move(*server) : nullptr;
  }
  std::unique_ptr<ProviderRepository> local_ = ProviderRepository::open(make_memory_backend(), {}).value();
};

TEST_F(NeighbourOfRepository, GetsNoAnswer) {
  OtherUser other(is_welcome_at);
  const auto server = open(false);
  EXPECT_TRUE(is_welcome_at(server->address())) << "the same user";
  EXPECT_EQ(other.go(server->address()), 'n');
}

TEST_F(NeighbourOfRepository, IsAdmittedWhereLoopbackIsOpen) {
  OtherUser other(is_welcome_at);
  const auto server = open(true);
  EXPECT_EQ(other.go(server->address()), 'y');
}

TEST_F(NeighbourOfRepository, IsNotBelievedAsTheServer) {
  const OtherUsersServer other([] {
    struct World {
      std::unique_ptr<ProviderRepository> local = ProviderRepository::open(make_memory_backend(), {}).value();
      std::unique_ptr<RepositoryServer> server;
    };
    auto world = std::make_shared<World>();
    auto server =
        RepositoryServer::open(*world->local, {.address = "tcp://127.0.0.1:*", .security = {.open_loopback = true}});
    if (!server) return OtherUsersServer::Served{};
    world->server = std::move(*server);
    return OtherUsersServer::Served{world, world->server->address()};
  });
  ASSERT_FALSE(other.address().empty());
  EXPECT_TRUE(is_refused(connect_repository(other.address()), Code::failed_precondition, "user 65534"));
  const auto trusting = connect_repository(other.address(), {.security = {.open_loopback = true}});
  EXPECT_TRUE(trusting) << trusting.error().message();
}

}  // namespace
}  // namespace freshet
