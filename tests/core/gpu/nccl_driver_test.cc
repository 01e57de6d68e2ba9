// SPDX-License-Identifier: Apache-2.0
// NCCL itself, between two processes on one GPU, where there is one. NCCL takes two ranks on one GPU since 2.30.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
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

/// What the peer says of the bytes; nothing when it hangs, and the script's other cases go on.
std::string word_of(const Peer& peer) {
  constexpr int kPatienceMs = 20'000;
  pollfd ready{.fd = peer.socket(), .events = POLLIN, .revents = 0};
  char word[16];
  const ssize_t size = ::poll(&ready, 1, kPatienceMs) > 0 ? ::recv(peer.socket(), word, sizeof word, 0) : 0;
  return {word, static_cast<std::size_t>(std::max<ssize_t>(size, 0))};
}

/// Whether the call to the dead peer stands still; so it does where its connection broke, and NCCL says so.
bool stands_still(Communicator& communicator, Bytes bytes) {
  if (!communicator.send(bytes, 1)) return true;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
  while (std::chrono::steady_clock::now() < deadline) {
    const auto done = communicator.poll();
    if (!done) return true;
    if (*done) return false;
  }
  return true;
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
  EXPECT_EQ(word_of(peer), "right");

  // Nobody says that a rank died: once NCCL's buffers are full the call never ends, and an abort does.
  peer.process().end(SIGKILL);
  constexpr int kSendsMax = 4;
  const std::vector<std::byte> more(kCollectiveBytesMax);
  int ended = 0;
  while (ended < kSendsMax && !stands_still(*communicator, more)) ++ended;
  EXPECT_LT(ended, kSendsMax);
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
