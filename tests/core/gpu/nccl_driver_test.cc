// SPDX-License-Identifier: Apache-2.0
// NCCL itself, between two processes on one GPU, where there is one. NCCL takes two ranks on one GPU since 2.30.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "core/gpu/collective.h"
#include "tests/core/gpu/gpu_peer.h"
#include "tests/support/eventually.h"

namespace freshet::gpu {
namespace {

constexpr int kVersionOfSharedGpus = 23000;

/// Its number, as ncclGetVersion says it.
int number_of(const std::string& version) {
  int major = 0;
  int minor = 0;
  int patch = 0;
  if (std::sscanf(version.c_str(), "NCCL %d.%d.%d", &major, &minor, &patch) != 3) return 0;
  return major * 10000 + minor * 100 + patch;
}

TEST(GpuDriver, NcclBringsBytesToAnotherProcessAndOutlivesItsEnd) {
  const auto version = nccl_version();
  if (!version) GTEST_SKIP() << version.error().message();
  ::setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);  // Before anything of NCCL runs, here and in the peer.
  const auto collective = open_nccl();
  if (!collective) GTEST_SKIP() << collective.error().message();
  if (number_of(*version) < kVersionOfSharedGpus) GTEST_SKIP() << *version << " takes no two ranks on one GPU";
  Peer peer("nccl", {.name = "driver", .is_host = false}, 1);
  const CollectiveId id = must((*collective)->make_id());
  ASSERT_EQ(::send(peer.socket(), id.bytes.data(), id.bytes.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(id.bytes.size()));
  const auto communicator = must((*collective)->join({.id = id, .ranks = 2, .rank = 0}));
  ASSERT_TRUE(came_true([&] { return must(communicator->poll()); })) << "the two did not meet";
  const auto bytes = test::seeded_bytes(kCollectivePeerBytes, 9);
  must(communicator->send(bytes, 1));
  ASSERT_TRUE(came_true([&] { return must(communicator->poll()); }));
  EXPECT_EQ(peer.process().line(), "right");

  // Nobody says that a rank died: the call never ends, and an abort does.
  peer.process().end(SIGKILL);
  (void)communicator->send(bytes, 1);
  for (int look = 0; look < 1000; ++look) {
    const auto done = communicator->poll();
    EXPECT_FALSE(done && *done);
    if (!done) break;  // Its connection broke, and NCCL says so.
  }
  communicator->abort();
  const auto platform = must(open_driver_platform());
  const auto device = must(platform->open(must(platform->devices()).front().uuid));
  const Memory memory = must(device->allocate(1 << 20));
  const Stream stream = must(device->create_stream());
  std::vector<std::byte> back(bytes.size() / 2);
  must(device->copy(stream.handle(), memory.address(), bytes.data(), back.size()));
  must(device->copy(stream.handle(), back.data(), memory.address(), back.size()));
  must(device->drain(kPatience));
  EXPECT_TRUE(std::equal(back.begin(), back.end(), bytes.begin())) << "the device works on";
}

}  // namespace
}  // namespace freshet::gpu
