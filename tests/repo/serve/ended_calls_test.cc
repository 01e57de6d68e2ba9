// SPDX-License-Identifier: Apache-2.0
/// What a server's workers do of the calls of clients that have left: what they had begun, and no more.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <memory>
#include <stop_token>
#include <thread>
#include <vector>

#include "repo/serve/remote_repository.h"
#include "repo/serve/server.h"
#include "tests/repo/serve/hooked_backend.h"
#include "tests/repo/serve/raw_client.h"
#include "tests/repo/world.h"
#include "tests/support/eventually.h"
#include "tests/support/temporary_folder.h"

namespace freshet {
namespace {

using namespace rpc;

TEST(EndedCalls, WhatWasNotBegunIsNotDone) {
  constexpr std::uint64_t kSlowThreads = 2;
  auto hooked = std::make_unique<HookedBackend>(make_memory_backend());
  HookedBackend& backend = *hooked;
  const auto local = open_or_die(std::move(hooked));
  std::mt19937_64 random(3);
  ASSERT_TRUE(put(*local, make_version("net", test_id(1), test_architecture({100}), nullptr, {}, random)));
  std::atomic<std::uint64_t> reads = 0;
  std::latch may_read(1);
  backend.before_reads([&]() -> Status {
    ++reads;
    may_read.wait();
    return {};
  });

  const TemporaryFolder folder;
  const auto server = RepositoryServer::open(*local, {.address = "ipc://" + folder.path() + "/socket"});
  ASSERT_TRUE(server) << server.error().message();
  const auto verify = [](RawClient& client, std::uint64_t request_number) {
    client.say(request(request_number, AskVerify{VersionName{.model = "net", .number = 1}}));
  };
  RawClient stays((*server)->address());
  stays.hello();
  for (std::uint64_t i = 0; i < kSlowThreads; ++i) verify(stays, 2 + i);
  EXPECT_TRUE(came_true([&] { return reads == kSlowThreads; }));
  {
    RawClient leaves((*server)->address());
    leaves.hello();
    for (std::uint64_t i = 0; i < 20; ++i) verify(leaves, 2 + i);
    EXPECT_TRUE(came_true([&] { return (*server)->stat().calls == kSlowThreads + 20; }));
    leaves.say(request(0, Bye{}));
    EXPECT_TRUE(came_true([&] { return (*server)->stat().clients == 1; }));
  }
  // Behind all of the other's in the queue.
  verify(stays, 2 + kSlowThreads);
  EXPECT_TRUE(came_true([&] { return (*server)->stat().calls == kSlowThreads + 1; }));
  may_read.count_down();
  for (std::uint64_t i = 0; i <= kSlowThreads; ++i) {
    std::optional<Received<wire::Reply>> answer;
    do {
      answer = stays.hear();
      ASSERT_TRUE(answer);
    } while (answer->verb() == kVerb<Advance>);
    EXPECT_TRUE(answer_in<AskVerify>(*answer));
  }
  EXPECT_EQ(reads, kSlowThreads + 1);
}

/// Else its client counts the answer as lost while there is no next owner to ask.
TEST(EndedCalls, AnOwnerThatEndsNamesCallsThatItDoesNotBegin) {
  auto hooked = std::make_unique<HookedBackend>(make_memory_backend());
  HookedBackend& backend = *hooked;
  const auto local = open_or_die(std::move(hooked));
  std::mt19937_64 random(5);
  ASSERT_TRUE(put(*local, make_version("net", test_id(1), test_architecture({100}), nullptr, {}, random)));
  std::latch may_read(1);
  backend.before_reads([&]() -> Status {
    may_read.wait();
    return {};
  });
  const TemporaryFolder folder;
  const auto server = RepositoryServer::open(*local, {.address = "ipc://" + folder.path() + "/socket", .moves = true});
  ASSERT_TRUE(server) << server.error().message();
  RawClient client((*server)->address());
  client.hello();
  client.say(request(2, AskVerify{VersionName{.model = "net", .number = 1}}));
  ASSERT_TRUE(came_true([&] { return (*server)->stat().calls == 1; }));
  std::stop_source stop;
  std::jthread drains(
      [&] { (*server)->drain(std::chrono::hours(1), stop.get_token(), RepositoryServer::Until::calls_ended); });
  ASSERT_TRUE(came_true([&] {
    RawClient late((*server)->address());
    late.say(rpc::hello(1));
    const auto answer = late.hear();
    return answer && (*answer)->failed() != nullptr;
  }));
  client.say(request(3, AskModels{}));
  const auto running = [&]() -> std::vector<std::uint64_t> {
    client.say(request(0, Ping{}));
    while (const auto answer = client.hear()) {
      if (const auto pong = step_in<Pong>(*answer)) return pong->running;
    }
    return {};
  };
  EXPECT_THAT(running(), testing::UnorderedElementsAre(2, 3));
  EXPECT_EQ((*server)->stat().calls, 1u) << "it does not wait for the later one";
  stop.request_stop();
  drains.join();
  EXPECT_TRUE(came_true([&] { return running() == std::vector<std::uint64_t>{2}; }))
      << "a call that hangs holds others";
  may_read.count_down();
}

TEST(EndedCalls, AServerFallsSilentBesideACallThatRuns) {
  auto hooked = std::make_unique<HookedBackend>(make_memory_backend());
  HookedBackend& backend = *hooked;
  const auto local = open_or_die(std::move(hooked));
  std::mt19937_64 random(4);
  ASSERT_TRUE(put(*local, make_version("net", test_id(1), test_architecture({100}), nullptr, {}, random)));
  std::latch reads(1);
  std::latch may_read(1);
  backend.before_reads([&]() -> Status {
    reads.count_down();
    may_read.wait();
    return {};
  });
  const TemporaryFolder folder;
  const auto server =
      RepositoryServer::open(*local, {.address = "ipc://" + folder.path() + "/socket", .security = {}, .moves = true});
  ASSERT_TRUE(server) << server.error().message();
  const auto watch = ServerWatch::of((*server)->address(), {});
  EXPECT_TRUE(came_true([&] { return watch->look() == ServerWatch::Seen::owner; }));
  RawClient client((*server)->address());
  client.hello();
  client.say(request(2, AskVerify{VersionName{.model = "net", .number = 1}}));
  reads.wait();
  (*server)->fall_silent();
  EXPECT_TRUE(came_true([&] { return watch->look() == ServerWatch::Seen::silent; }));
  may_read.count_down();
}

}  // namespace
}  // namespace freshet
