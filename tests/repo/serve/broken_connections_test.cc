// SPDX-License-Identifier: Apache-2.0
/// A repository's server beside peers whose connections break in the middle: it lives, and serves the others.

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "repo/serve/remote_repository.h"
#include "repo/serve/server.h"
#include "tests/repo/world.h"
#include "tests/support/raw_zmtp.h"

namespace freshet {
namespace {

using test::RawZmtp;

[[noreturn]] void serve_through_a_sweep(std::uint32_t seed) {
  const std::unique_ptr<ProviderRepository> local = open_or_die(make_memory_backend());
  auto server = RepositoryServer::open(*local, {.address = "tcp://127.0.0.1:*", .security = {}});
  if (!server) std::_Exit(2);
  std::mt19937 random(seed);
  for (int i = 0; i < 200; ++i) {
    RawZmtp peer((*server)->address());
    if (!peer) continue;
    if (random() % 2 == 0) static_cast<void>(peer.shake_hands());
    std::string bytes;
    for (std::uint32_t frames = random() % 300; frames > 0; --frames) {
      switch (random() % 4) {
        case 0: bytes += RawZmtp::ping(); break;
        case 1: bytes += RawZmtp::frame(RawZmtp::kMore, std::string(random() % 2000, 'm')); break;
        default: bytes += RawZmtp::frame(0, std::string(random() % 40, 'x'));
      }
    }
    bytes.resize(random() % (bytes.size() + 1));
    static_cast<void>(peer.say(bytes));
    if (random() % 4 != 0) peer.reset();
  }
  const auto remote = connect_repository((*server)->address());
  if (!remote) std::_Exit(3);
  std::_Exit((*remote)->stat() ? 0 : 4);
}

TEST(BrokenServerConnections, NoBurstAndNoResetEndsARepositorysServer) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  // A child of the threadsafe style runs this test anew, so the seed goes by the environment.
  const char* const given = std::getenv("FRESHET_SWEEP_SEED");
  const std::uint32_t seed = given != nullptr ? static_cast<std::uint32_t>(std::stoul(given)) : std::random_device()();
  ::setenv("FRESHET_SWEEP_SEED", std::to_string(seed).c_str(), 1);
  SCOPED_TRACE("FRESHET_SWEEP_SEED=" + std::to_string(seed));
  EXPECT_EXIT(serve_through_a_sweep(seed), ::testing::ExitedWithCode(0), "");
  ::unsetenv("FRESHET_SWEEP_SEED");
}

}  // namespace
}  // namespace freshet
