// SPDX-License-Identifier: Apache-2.0
// What a Collective promises, on the host collective, and what is said where NCCL is not there. NCCL itself wants
// devices.
#include "core/gpu/collective.h"

#include <gmock/gmock.h>

#include <memory>
#include <vector>

#include "core/gpu/host_collective.h"
#include "tests/support/seeded_bytes.h"

namespace freshet::gpu {
namespace {

using testing::HasSubstr;
using Ranks = std::vector<std::unique_ptr<Communicator>>;

/// Rank 0 has made the id; each rank has a collective of its own, as in processes of their own.
struct CollectiveRig {
  std::vector<HostCollective> collectives;
  Ranks ranks;

  explicit CollectiveRig(int count, int joining) : collectives(static_cast<std::size_t>(count)) {
    const CollectiveId id = *collectives[0].make_id();
    for (int rank = 0; rank < joining; ++rank) {
      auto joined = collectives[static_cast<std::size_t>(rank)].join({.id = id, .ranks = count, .rank = rank});
      EXPECT_TRUE(joined) << joined.error().message();
      ranks.push_back(std::move(*joined));
    }
  }

  /// Polls all; how many were done after so many turns at most.
  int poll(int turns = 10'000) {
    int done = 0;
    for (int turn = 0; turn < turns && done != static_cast<int>(ranks.size()); ++turn) {
      done = 0;
      for (const auto& rank : ranks) done += rank->poll().value() ? 1 : 0;
    }
    return done;
  }
};

constexpr std::uint64_t kCollectiveTestBytes = (3 << 20) + 7;

TEST(HostCollectiveTest, ABroadcastBringsRankZerosBytesToAll) {
  CollectiveRig rig(4, 4);
  ASSERT_EQ(rig.poll(), 4);
  const auto sent = test::seeded_bytes(kCollectiveTestBytes, 1);
  std::vector<std::vector<std::byte>> bytes(4, std::vector<std::byte>(kCollectiveTestBytes));
  bytes[0] = sent;
  for (std::size_t rank = 0; rank < 4; ++rank) ASSERT_TRUE(rig.ranks[rank]->broadcast(bytes[rank]));
  ASSERT_EQ(rig.poll(), 4);
  for (const auto& one : bytes) EXPECT_TRUE(test::same_bytes(one, sent));
}

TEST(HostCollectiveTest, TwoRanksSendAndReceive) {
  CollectiveRig rig(2, 2);
  ASSERT_EQ(rig.poll(), 2);
  for (std::uint64_t seed : {1, 2}) {
    const auto sent = test::seeded_bytes(kCollectiveTestBytes, seed);
    std::vector<std::byte> received(kCollectiveTestBytes);
    ASSERT_TRUE(rig.ranks[0]->send(sent, 1));
    ASSERT_TRUE(rig.ranks[1]->receive(received, 0));
    ASSERT_EQ(rig.poll(), 2);
    EXPECT_TRUE(test::same_bytes(received, sent));
  }
}

TEST(HostCollectiveTest, NobodyIsDoneBeforeAllHaveJoined) {
  CollectiveRig rig(3, 2);
  EXPECT_EQ(rig.poll(100), 0);
}

TEST(HostCollectiveTest, APeerThatDiedIsOneThatDoesNotAnswer) {
  CollectiveRig rig(3, 3);
  ASSERT_EQ(rig.poll(), 3);
  rig.ranks.pop_back();
  auto bytes = test::seeded_bytes(kCollectiveTestBytes, 1);
  ASSERT_TRUE(rig.ranks[0]->broadcast(bytes));
  for (int turn = 0; turn < 100; ++turn) {
    const auto done = rig.ranks[0]->poll();
    ASSERT_TRUE(done) << done.error().message();
    ASSERT_FALSE(*done);
  }
  rig.ranks[0]->abort();
}

TEST(HostCollectiveTest, WhatIsNoSeatIsRefused) {
  HostCollective collective;
  const CollectiveId id = *collective.make_id();
  for (const auto& [ranks, rank] : {std::pair(1, 0), {kRanksMax + 1, 0}, {2, 2}, {2, -1}}) {
    EXPECT_EQ(collective.join({.id = id, .ranks = ranks, .rank = rank}).error().code(), Code::invalid_argument);
  }
  EXPECT_TRUE(collective.join({.id = id, .ranks = kRanksMax, .rank = 0}));
  EXPECT_FALSE(collective.join({.id = id, .ranks = 2, .rank = 0})) << "an id is for one communicator";
}

TEST(Nccl, SaysWhyItIsUnavailable) {
  const auto none = nccl_version("libno-such-nccl.so.2");
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code(), Code::unavailable);
  EXPECT_THAT(none.error().message(), HasSubstr("no libno-such-nccl.so.2 here"));
  const auto other = nccl_version("libm.so.6");
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code(), Code::unavailable);
  EXPECT_THAT(other.error().message(), HasSubstr("libm.so.6 has no function nccl"));
}

TEST(Nccl, OpensOrSaysWhyNot) {
  const auto opened = open_nccl();
  if (opened) GTEST_SKIP() << "there is an NCCL here";
  EXPECT_EQ(opened.error().code(), Code::unavailable);
  EXPECT_THAT(opened.error().message(), testing::StartsWith("open "));
}

}  // namespace
}  // namespace freshet::gpu
