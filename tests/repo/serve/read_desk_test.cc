// SPDX-License-Identifier: Apache-2.0
/// Leases and staging memory, without a channel: the test is one.

#include "repo/serve/server/read_desk.h"

#include <gtest/gtest.h>

#include <thread>

#include "tests/repo/serve/hooked_backend.h"
#include "tests/repo/world.h"
#include "tests/support/eventually.h"
#include "tests/support/refused.h"

namespace freshet::rpc {
namespace {

using channel::FetchRequest;
using channel::OpenFetch;
using channel::Piece;

constexpr SessionId kMine = 11;
constexpr SessionId kOthers = 12;
constexpr std::uint64_t kBlock = 64 << 10;

class ReadDeskTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(put(*repository_, version_));
    record_ = std::make_shared<const VersionRecord>(repository_->get({.model = "net"}).value());
    ASSERT_TRUE(desk_.start(2));
    desk_.begin_session(kMine);
    desk_.begin_session(kOthers);
  }
  ReadDesk::Subject all() const {
    ReadDesk::Subject subject{.record = record_, .parts = {}};
    for (std::uint32_t i = 0; i < version_.bytes.size(); ++i) {
      subject.parts.push_back({.tensor = i, .segment = {}, .bytes = version_.bytes[i].size()});
    }
    return subject;
  }
  LeaseId lend(SessionId session = kMine) {
    const auto lease = desk_.lend(session, all(), now());
    EXPECT_TRUE(lease) << lease.error().message();
    return lease.value_or(0);
  }
  /// Everything, in pieces of so many bytes.
  FetchRequest request(LeaseId lease, SessionId session = kMine, std::uint64_t piece_bytes = 50'000) const {
    FetchRequest request{.request = 1, .session = session, .lease = lease, .version = 1, .pieces = {}};
    for (std::uint32_t i = 0; i < version_.bytes.size(); ++i) {
      for (std::uint64_t at = 0; at < version_.bytes[i].size(); at += piece_bytes) {
        const std::uint64_t bytes = std::min(piece_bytes, version_.bytes[i].size() - at);
        request.pieces.push_back({.tensor = i, .offset = at, .bytes = bytes, .base = std::nullopt});
      }
    }
    return request;
  }
  /// What a channel would send.
  Result<std::vector<std::vector<std::byte>>> drain(const FetchRequest& request) {
    FRESHET_ASSIGN(const auto open, desk_.open(request));
    auto got = version_.bytes;
    for (auto& tensor : got) std::fill(tensor.begin(), tensor.end(), std::byte{0});
    for (std::size_t i = 0; i < request.pieces.size(); ++i) {
      Result<bool> can = false;
      EXPECT_TRUE(came_true([&] { return !(can = open->can_answer(i)) || *can; }));
      if (!can) return fail(can.error());
      FRESHET_ASSIGN(const OpenFetch::Answer answer, open->answer(i));
      std::copy(answer.bytes.begin(), answer.bytes.end(),
                got[request.pieces[i].tensor].begin() + static_cast<std::ptrdiff_t>(request.pieces[i].offset));
      open->release(i);
    }
    return got;
  }
  Code refusal(const FetchRequest& request) {
    const auto open = desk_.open(request);
    EXPECT_FALSE(open);
    return open ? Code{} : open.error().code();
  }
  static Time now() { return system_clock().now(); }

  std::mt19937_64 random_{5};
  const TestVersion version_ =
      make_version("net", test_id(1), test_architecture({300'000, 0, 9, 70'000, 1, 150'000}), nullptr, {}, random_);
  HookedBackend* backend_ = new HookedBackend(make_memory_backend());
  std::unique_ptr<ProviderRepository> repository_ = open_or_die(std::unique_ptr<Backend>(backend_));
  std::shared_ptr<const VersionRecord> record_;
  ReadDesk desk_{
      *repository_,
      {.staging_bytes = 4 * kBlock, .block_bytes = kBlock, .ahead_bytes = 2 * kBlock, .leases_per_session_max = 3},
      /*seed=*/99};
};

TEST_F(ReadDeskTest, WhatWasLentIsAnsweredInPiecesOfAnySize) {
  const LeaseId lease = lend();
  for (const std::uint64_t piece : {1'000u, 50'000u, 65'536u}) {
    const auto got = drain(request(lease, kMine, piece));
    ASSERT_TRUE(got) << got.error().message();
    EXPECT_EQ(*got, version_.bytes) << piece;
  }
  EXPECT_EQ(desk_.stat().staged_bytes, 0u);
  EXPECT_EQ(desk_.stat().fetches, 0u);
}

TEST_F(ReadDeskTest, SegmentsAreLentByTheirNames) {
  ReadDesk::Subject subject;
  subject.parts.push_back({.segment = version_.manifest.owners[3], .offset = 10, .bytes = 60'000});
  const LeaseId lease = desk_.lend(kMine, subject, now()).value();
  FetchRequest asked{.request = 1, .session = kMine, .lease = lease, .version = 0, .pieces = {}};
  asked.pieces.push_back({.tensor = 0, .offset = 5, .bytes = 100, .base = std::nullopt});
  const auto open = desk_.open(asked).value();
  ASSERT_TRUE(came_true([&] { return open->can_answer(0).value(); }));
  const Bytes bytes = open->answer(0)->bytes;
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), version_.bytes[3].begin() + 15));
}

TEST_F(ReadDeskTest, OnlyALivingLeaseOfTheSessionIsAnswered) {
  const LeaseId lease = lend();
  EXPECT_EQ(refusal(request(lease, kOthers)), Code::failed_precondition);
  EXPECT_EQ(refusal(request(lease + 1)), Code::failed_precondition);
  const LeaseId old = desk_.lend(kMine, all(), now() - std::chrono::minutes(1)).value();
  EXPECT_EQ(refusal(request(old)), Code::failed_precondition);
  EXPECT_EQ(desk_.renew(kMine, old, now()).error().code(), Code::failed_precondition);
  EXPECT_EQ(desk_.renew(kOthers, lease, now()).error().code(), Code::failed_precondition);
  desk_.end(kOthers, lease);
  EXPECT_TRUE(desk_.renew(kMine, lease, now()));
  desk_.end(kMine, lease);
  EXPECT_EQ(refusal(request(lease)), Code::failed_precondition);
}

TEST_F(ReadDeskTest, PiecesOutsideAreRefused) {
  const LeaseId lease = lend();
  const auto with = [&](const Piece& piece) {
    FetchRequest asked = request(lease);
    asked.pieces.push_back(piece);
    return refusal(asked);
  };
  EXPECT_EQ(with({.tensor = 6, .offset = 0, .bytes = 1, .base = {}}), Code::invalid_argument);
  EXPECT_EQ(with({.tensor = 0, .offset = 300'000, .bytes = 1, .base = {}}), Code::invalid_argument);
  EXPECT_EQ(with({.tensor = 0, .offset = ~std::uint64_t{0}, .bytes = 2, .base = {}}), Code::invalid_argument);
  EXPECT_EQ(with({.tensor = 0, .offset = 0, .bytes = kBlock + 1, .base = {}}), Code::invalid_argument);
  FetchRequest other = request(lease);
  other.version = 2;
  EXPECT_EQ(refusal(other), Code::invalid_argument);
}

TEST_F(ReadDeskTest, NothingIsLentThatIsNotThere) {
  ReadDesk::Subject outside = all();
  outside.parts.front().bytes += 1;
  EXPECT_EQ(desk_.lend(kMine, outside, now()).error().code(), Code::invalid_argument);
  ReadDesk::Subject unknown;
  unknown.parts.push_back({.segment = {.writer = test_id(9)}, .bytes = 1});
  EXPECT_EQ(desk_.lend(kMine, unknown, now()).error().code(), Code::not_found);
  EXPECT_EQ(desk_.lend(77, all(), now()).error().code(), Code::unavailable);
  for (int i = 0; i < 3; ++i) lend();
  EXPECT_EQ(desk_.lend(kMine, all(), now()).error().code(), Code::out_of_space);
  lend(kOthers);
  desk_.end_session(kMine);
  EXPECT_EQ(desk_.stat().leases, 1u);
}

TEST_F(ReadDeskTest, OneKeyLeavesLeasesToOthers) {
  ReadDesk desk{*repository_, {.leases_per_session_max = 3, .leases_per_key_max = 4, .parts_max = 100}, /*seed=*/99};
  for (const SessionId session : {1, 2, 3}) desk.begin_session(session, session == 3 ? "few" : "many");
  for (const SessionId session : {1, 1, 1, 2}) EXPECT_TRUE(desk.lend(session, all(), now()));
  EXPECT_NE(desk.lend(1, all(), now()).error().message().find("3 leases"), std::string::npos);
  EXPECT_NE(desk.lend(2, all(), now()).error().message().find("to this key"), std::string::npos);
  desk.end_session(1);
  ReadDesk::Subject many = all();
  while (many.parts.size() <= 50) many.parts.push_back(many.parts.front());
  EXPECT_NE(desk.lend(2, many, now()).error().message().find("leases of this key"), std::string::npos);
  EXPECT_TRUE(desk.lend(3, all(), now()));
}

TEST_F(ReadDeskTest, WithTheSessionOrTheLeaseItsFetchesEnd) {
  const LeaseId lease = lend();
  const FetchRequest asked = request(lease);
  auto open = desk_.open(asked).value();
  ASSERT_TRUE(came_true([&] { return open->can_answer(0).value(); }));
  EXPECT_GT(desk_.stat().staged_bytes, 0u);
  desk_.end_session(kMine);
  EXPECT_EQ(open->can_answer(0).error().code(), Code::failed_precondition);
  EXPECT_EQ(open->can_answer(asked.pieces.size() - 1).error().code(), Code::failed_precondition);
  open.reset();
  EXPECT_TRUE(came_true([&] { return desk_.stat().staged_bytes == 0; }));
  EXPECT_EQ(desk_.stat().leases + desk_.stat().fetches, 0u);
}

TEST_F(ReadDeskTest, WhoDoesNotTakeWhatWasReadForHimIsCutOff) {
  const auto open = desk_.open(request(lend())).value();
  ASSERT_TRUE(came_true([&] { return open->can_answer(0).value(); }));
  EXPECT_TRUE(desk_.on_tick(now()).empty());
  EXPECT_EQ(desk_.on_tick(now() + std::chrono::seconds(11)), std::vector<SessionId>{kMine});
  EXPECT_FALSE(open->can_answer(0));
  EXPECT_EQ(desk_.stat().leases, 0u);
}

TEST_F(ReadDeskTest, StagingMemoryIsBoundedAndSharedByAll) {
  const LeaseId mine = lend();
  const LeaseId others = lend(kOthers);
  std::vector<std::unique_ptr<OpenFetch>> greedy;
  for (int i = 0; i < 6; ++i) greedy.push_back(desk_.open(request(mine)).value());
  // A session has half at most, so that somebody who takes nothing leaves room for another.
  EXPECT_EQ(desk_.stat().staged_bytes <= 2 * kBlock, true) << desk_.stat().staged_bytes;
  const auto beside = drain(request(others, kOthers));
  ASSERT_TRUE(beside) << beside.error().message();
  EXPECT_EQ(*beside, version_.bytes);
  greedy.clear();
  EXPECT_TRUE(came_true([&] { return desk_.stat().staged_bytes == 0; }));

  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      const SessionId session = i % 2 == 0 ? kMine : kOthers;
      for (int n = 0; n < 5; ++n) {
        const auto got = drain(request(i % 2 == 0 ? mine : others, session));
        if (got && *got == version_.bytes) ++right;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 40);
  EXPECT_EQ(desk_.stat().staged_bytes, 0u);
}

TEST_F(ReadDeskTest, AReadThatFailsEndsItsFetch) {
  const LeaseId lease = lend();
  backend_->before_reads([] { return fail(Code::io_error, "the disk is gone"); });
  EXPECT_TRUE(is_refused(drain(request(lease)), Code::io_error));
  backend_->before_reads({});
  EXPECT_TRUE(came_true([&] { return desk_.stat().staged_bytes == 0; }));
  EXPECT_EQ(drain(request(lease)).value(), version_.bytes);
}

TEST_F(ReadDeskTest, GarbageCollectionLeavesWhatIsLent) {
  const LeaseId lease = lend();
  ASSERT_TRUE(repository_->retire({.model = "net", .number = 1}, {}));
  EXPECT_EQ(repository_->gc({}, {})->freed_bytes, 0u);
  EXPECT_EQ(drain(request(lease)).value(), version_.bytes);
  EXPECT_EQ(desk_.lend(kMine, all(), now()).error().code(), Code::not_found);
  desk_.end(kMine, lease);
  EXPECT_EQ(repository_->gc({}, {})->freed_bytes, 520'010u);
}

}  // namespace
}  // namespace freshet::rpc
