// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/directory_conformance.h"

#include "tests/support/redis_server.h"
#include "tests/support/temporary_folder.h"
#ifdef FRESHET_REDIS
#include "transport/redis/directory.h"
#endif

namespace freshet {
namespace {

class HostWorld final : public DirectoryWorld {
 public:
  Result<std::unique_ptr<Directory>> open() override { return open_directory(folder_.path()); }

 private:
  TemporaryFolder folder_;
};

#ifdef FRESHET_REDIS
class RedisWorld final : public DirectoryWorld {
 public:
  Result<std::unique_ptr<Directory>> open() override {
    FRESHET_ASSIGN(RedisAddress address, RedisAddress::parse(server_.unix_address()));
    FRESHET_ASSIGN(auto host, HostDirectory::open(folder_.path()));
    // A short lease is a short quarantine of a young directory.
    return RedisDirectory::open(std::move(address), {.lease = std::chrono::milliseconds(300)}, std::move(host))
        .map([](auto redis) { return std::unique_ptr<Directory>(std::move(redis)); });
  }
  std::string why_not() const override { return server_.why_not(); }

 private:
  TemporaryFolder folder_;
  RedisServer server_;
};
#else
class RedisWorld final : public DirectoryWorld {
 public:
  Result<std::unique_ptr<Directory>> open() override { return open_directory("redis://127.0.0.1"); }
  std::string why_not() const override { return "this build has no directory on Redis"; }
};
#endif

template <typename World>
std::unique_ptr<DirectoryWorld> make() {
  return std::make_unique<World>();
}

INSTANTIATE_TEST_SUITE_P(Directories, DirectoryConformance,
                         ::testing::Values(DirectoryCase{.name = "host", .make = make<HostWorld>},
                                           DirectoryCase{.name = "redis", .make = make<RedisWorld>}),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace freshet
