// SPDX-License-Identifier: Apache-2.0
#include "core/gpu/host_pages.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>

#include "core/gpu/host_device.h"
#include "tests/core/gpu/gpu_conformance.h"

namespace freshet::gpu {
namespace {

/// A warm-up of the learning rate: each version changes a little more than all before.
TEST(HostPagePool, SizesThatGrowLeaveLittleBehind) {
  HostPlatform platform({.seed = 1, .devices = 1});
  const auto device = must(platform.open(host_device_uuid(0)));
  HostPagePool pool;
  std::map<const std::byte*, std::uint64_t> registered;
  std::uint64_t asked = 0;
  for (asked = 128 << 10; asked <= 32 << 20; asked += 128 << 10) {
    auto pages = must(pool.take(*device, asked));
    ASSERT_GE(pages->bytes(), asked);
    registered[pages->begin()] = pages->bytes();
    pool.give_back(std::move(pages));
  }
  std::uint64_t all = 0;
  for (const auto& [begin, bytes] : registered) all += bytes;
  EXPECT_LE(all, std::uint64_t{64} << 20);
}

/// The device keeps the page that it was told of; a private page would be another one at the first write after a fork.
TEST(HostPages, AForkMovesNoPageAwayFromTheDevice) {
  HostPlatform platform({.seed = 1, .devices = 1});
  const auto device = must(platform.open(host_device_uuid(0)));
  const auto pages = must(HostPages::make(*device, 100));
  *pages->begin() = std::byte{1};
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    *pages->begin() = std::byte{2};
    ::_exit(0);
  }
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_EQ(*pages->begin(), std::byte{2});
}

}  // namespace
}  // namespace freshet::gpu
