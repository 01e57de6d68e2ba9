// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What the tests of the directory on Redis share: a server of their own, and directories with short times.

#include <gtest/gtest.h>
#include <poll.h>

#include <functional>
#include <memory>
#include <string>

#include "tests/support/redis_command.h"
#include "tests/support/redis_server.h"
#include "tests/transport/model_fixture.h"
#include "transport/redis/directory.h"

namespace freshet::test {

class RedisTest : public ::testing::Test {
 protected:
  explicit RedisTest(RedisServer::Options options = {}) : server_(std::move(options)) {}
  void SetUp() override {
    if (!server_.why_not().empty()) GTEST_SKIP() << server_.why_not();
    grow_old();
  }

  /// As if the directory had been there for long: no name is in quarantine.
  void grow_old() { command({"SET", "freshet:born", "1"}); }
  std::string command(const std::vector<std::string>& words) { return redis_command(server_.socket(), words); }

  static RedisTimes short_times() {
    return {.answer_within = std::chrono::milliseconds(500),
            .ping_every = std::chrono::milliseconds(100),
            .pause_max = std::chrono::milliseconds(100),
            .patience = std::chrono::milliseconds(700),
            .lease = std::chrono::milliseconds(400),
            .look_again = std::chrono::milliseconds(300),
            .numbers_ahead = 16};
  }
  std::unique_ptr<Directory> open(RedisTimes times = short_times()) { return open_at(server_.tcp_address(), times); }
  std::unique_ptr<Directory> open_at(const std::string& text, RedisTimes times = short_times()) {
    auto address = RedisAddress::parse(text);
    auto host = HostDirectory::open(folder_.path());
    EXPECT_TRUE(address && host);
    auto directory = RedisDirectory::open(std::move(*address), times, std::move(*host));
    EXPECT_TRUE(directory) << directory.error().message();
    return std::move(*directory);
  }
  static std::unique_ptr<Directory::Claim> claim(Directory& directory) {
    auto claimed = directory.claim("demo");
    EXPECT_TRUE(claimed) << claimed.error().message();
    return claimed ? std::move(*claimed) : nullptr;
  }
  static Directory::Entry entry(std::uint64_t incarnation) {
    return {.model = "demo", .pid = 7, .incarnation = incarnation, .control = "tcp://10.0.0.1:7070"};
  }
  static bool hears(Directory::Watch& watch, const std::function<bool()>& holds) {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (!holds()) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
      if (left.count() <= 0) return false;
      pollfd item{.fd = watch.descriptor(), .events = POLLIN, .revents = 0};
      if (::poll(&item, 1, static_cast<int>(left.count())) > 0) watch.take();
    }
    return true;
  }
  static bool is_reachable(const Directory& directory) { return directory.health() == "reachable"; }

  TemporaryFolder folder_;
  RedisServer server_;
};

}  // namespace freshet::test
