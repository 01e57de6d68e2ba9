// SPDX-License-Identifier: Apache-2.0
#include "transport/source/fetch_desk.h"
#include "tests/support/refused.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <set>
#include <thread>

namespace freshet::source {
namespace {

using channel::Encoding;
using channel::FetchRequest;

constexpr std::size_t kElements = 4096;

class FetchDeskTest : public ::testing::Test {
 protected:
  FetchDeskTest() {
    std::mt19937 random(1);
    for (auto& value : old_) value = static_cast<std::uint16_t>(random());
    new_ = old_;
    for (std::size_t i = 0; i < kElements; i += 100) ++new_[i];
    std::vector<TensorSpec> specs{{.name = "a", .dtype = DType::bf16, .shape = {kElements}},
                                  {.name = "b", .dtype = DType::u8, .shape = {3}}};
    architecture_ = *Architecture::guess_chain(std::move(specs));
    const SegmentName old_names[] = {{.writer = id(1), .tensor = 0}};
    const SegmentIndex old_segments[] = {10};
    const Bytes old_memory[] = {bytes_of(old_.data(), sizeof old_)};
    segments_->add(old_names, old_segments, old_memory);
    desk_.open_lease(7, {.session = 3, .manifest = manifest(2), .tensors = tensors(), .segments = segments_});
  }

  static VersionId id(std::uint64_t sequence) {
    return {.run = {.high = 1, .low = 2}, .incarnation = 3, .sequence = sequence};
  }
  static Bytes bytes_of(const void* data, std::size_t bytes) { return {static_cast<const std::byte*>(data), bytes}; }

  std::vector<Bytes> tensors() const { return {bytes_of(new_.data(), sizeof new_), bytes_of(small_.data(), 3)}; }
  std::shared_ptr<const Manifest> manifest(VersionNumber number) const {
    auto manifest = std::make_shared<Manifest>();
    manifest->name = {.model = "demo", .number = number};
    manifest->id = id(number);
    manifest->architecture = architecture_;
    manifest->owners = OwnerMap::all_written_by(id(number), 2);
    return manifest;
  }
  static FetchRequest request(std::vector<channel::Piece> pieces) {
    return {.request = 1, .session = 3, .lease = 7, .version = 2, .pieces = std::move(pieces)};
  }

  std::array<std::uint16_t, kElements> old_{}, new_{};
  std::array<std::uint8_t, 3> small_{1, 2, 3};
  std::shared_ptr<const Architecture> architecture_;
  std::vector<protocol::LeaseId> closed_;
  std::shared_ptr<ServedSegments> segments_ = ServedSegments::make([](auto) {});
  FetchDesk desk_{[this](protocol::LeaseId lease) { closed_.push_back(lease); }, 1 << 20};
};

TEST_F(FetchDeskTest, AnswersWithTheBytesThatWereAskedFor) {
  auto fetch = desk_.open(
      request({{.tensor = 1, .bytes = 3}, {.tensor = 0, .offset = 4, .bytes = 6}, {.tensor = 1, .offset = 3}}));
  ASSERT_TRUE(fetch) << fetch.error().message();
  const auto whole = (*fetch)->answer(0);
  ASSERT_TRUE(whole);
  EXPECT_EQ(whole->encoding, Encoding::dense);
  ASSERT_EQ(whole->bytes.size(), 3u);
  EXPECT_EQ(std::memcmp(whole->bytes.data(), small_.data(), 3), 0);
  const auto part = (*fetch)->answer(1);
  ASSERT_EQ(part->bytes.size(), 6u);
  EXPECT_EQ(std::memcmp(part->bytes.data(), new_.data() + 2, 6), 0);
  EXPECT_TRUE((*fetch)->answer(2)->bytes.empty());
}

TEST_F(FetchDeskTest, AnswersWithADeltaFromASegmentThatItHas) {
  const SegmentName base{.writer = id(1), .tensor = 0};
  auto fetch = desk_.open(request({{.tensor = 0, .bytes = sizeof new_, .base = base}}));
  ASSERT_TRUE(fetch);
  const auto answer = (*fetch)->answer(0);
  ASSERT_TRUE(answer);
  ASSERT_EQ(answer->encoding, Encoding::delta);
  EXPECT_LT(answer->bytes.size(), sizeof new_ / 10);
  auto memory = old_;
  const auto applied =
      apply_delta({.dtype = DType::bf16, .base = base, .target = {.writer = id(2), .tensor = 0}}, answer->bytes,
                  MutableBytes(reinterpret_cast<std::byte*>(memory.data()), sizeof memory));
  ASSERT_TRUE(applied) << applied.error().message();
  EXPECT_EQ(memory, new_);
}

TEST_F(FetchDeskTest, ADeltaIsMadeOnce) {
  const SegmentName base{.writer = id(1), .tensor = 0};
  for (int i = 0; i < 3; ++i) {
    auto fetch = desk_.open(request({{.tensor = 0, .bytes = sizeof new_, .base = base}}));
    ASSERT_EQ((*fetch)->answer(0)->encoding, Encoding::delta);
  }
  EXPECT_EQ(desk_.deltas().made, 1u);
  EXPECT_EQ(desk_.deltas().found, 2u);
}

TEST_F(FetchDeskTest, AnswersDenseWhereTheBaseIsUnknownOrTheLinkIsFast) {
  auto unknown =
      desk_.open(request({{.tensor = 0, .bytes = sizeof new_, .base = SegmentName{.writer = id(9), .tensor = 0}}}));
  EXPECT_EQ((*unknown)->answer(0)->encoding, Encoding::dense);
  FetchRequest fast = request({{.tensor = 0, .bytes = sizeof new_, .base = SegmentName{.writer = id(1), .tensor = 0}}});
  fast.link_bytes_per_second = 100'000'000'000;
  auto fetch = desk_.open(fast);
  EXPECT_EQ((*fetch)->answer(0)->encoding, Encoding::dense);
}

TEST_F(FetchDeskTest, AStrangerLearnsNothing) {
  const auto refused = [&](FetchRequest wrong) {
    const auto fetch = desk_.open(wrong);
    return fetch ? std::string("allowed") : fetch.error().message();
  };
  FetchRequest right = request({{.tensor = 1, .bytes = 3}});
  FetchRequest lease = right, session = right, version = right;
  lease.lease = 8;
  session.session = 4;
  version.version = 3;
  EXPECT_EQ(refused(right), "allowed");
  EXPECT_NE(refused(lease), "allowed");
  EXPECT_EQ(refused(session), refused(lease)) << "told that the lease exists";
  EXPECT_NE(refused(version), "allowed");
}

TEST_F(FetchDeskTest, NobodyReadsPastTheEnd) {
  const std::uint64_t last = ~std::uint64_t{0};
  for (const channel::Piece& piece :
       std::vector<channel::Piece>{{.tensor = 2, .bytes = 0},
                                   {.tensor = 1, .bytes = 4},
                                   {.tensor = 1, .offset = 4, .bytes = 0},
                                   {.tensor = 1, .offset = 1, .bytes = 3},
                                   {.tensor = 1, .offset = last, .bytes = 2},
                                   {.tensor = 1, .offset = 2, .bytes = last},
                                   {.tensor = 0, .offset = 2, .bytes = 2, .base = SegmentName{}}}) {
    EXPECT_TRUE(is_refused(desk_.open(request({piece})), Code::invalid_argument))
        << piece.tensor << " " << piece.offset << " " << piece.bytes;
  }
  desk_.close_lease(7);
  EXPECT_EQ(closed_, std::vector<protocol::LeaseId>{7}) << "a refused request reads on";
}

TEST_F(FetchDeskTest, ALeaseIsClosedWhenItsLastFetchEnds) {
  auto first = desk_.open(request({{.tensor = 1, .bytes = 3}}));
  auto second = desk_.open(request({{.tensor = 1, .bytes = 3}}));
  desk_.close_lease(7);
  EXPECT_FALSE(desk_.open(request({{.tensor = 1, .bytes = 3}}))) << "closed: nobody new";
  first->reset();
  EXPECT_TRUE(closed_.empty());
  second->reset();
  EXPECT_EQ(closed_, std::vector<protocol::LeaseId>{7});
  desk_.close_lease(7);
  EXPECT_EQ(closed_.size(), 1u);
}

TEST_F(FetchDeskTest, WhoReadsWhenAllLeasesCloseIsNamedAndWaitedFor) {
  const auto others = ServedSegments::make([](auto) {});
  for (const protocol::LeaseId lease : {8, 9}) {
    desk_.open_lease(lease,
                     {.session = lease - 4, .manifest = manifest(2), .tensors = tensors(), .segments = segments_});
  }
  desk_.open_lease(20, {.session = 6, .manifest = manifest(2), .tensors = tensors(), .segments = others});
  FetchRequest of_four = request({{.tensor = 1, .bytes = 3}});
  of_four.session = 4;
  of_four.lease = 8;
  auto fetch = desk_.open(of_four);
  ASSERT_TRUE(fetch);
  EXPECT_EQ(desk_.close_all_of(*segments_), std::set<protocol::SessionId>{4});
  EXPECT_FALSE(desk_.open(of_four)) << "whoever is to be cut off begins nothing new";
  std::ranges::sort(closed_);
  EXPECT_EQ(closed_, (std::vector<protocol::LeaseId>{7, 9}));
  std::thread cut([&] { fetch->reset(); });
  desk_.wait_unread(*segments_);
  cut.join();
  EXPECT_EQ(closed_.back(), 8u);
  EXPECT_TRUE(desk_.close_all_of(*others).empty());
  EXPECT_EQ(closed_.back(), 20u);
}

TEST_F(FetchDeskTest, WhatChangedNearlyEverywhereIsNotEvenTried) {
  for (std::size_t i = 0; i < new_.size(); ++i) new_[i] = static_cast<std::uint16_t>(40503u * (i + 1));
  const SegmentName base{.writer = id(1), .tensor = 0};
  auto fetch = desk_.open(request({{.tensor = 0, .bytes = sizeof new_, .base = base}}));
  EXPECT_EQ((*fetch)->answer(0)->encoding, Encoding::dense);
  EXPECT_EQ(desk_.deltas().not_worth, 1u);
  EXPECT_EQ(desk_.deltas().made, 0u);
}

TEST_F(FetchDeskTest, ADeltaThatIsThereGoesOverAnyLink) {
  const SegmentName base{.writer = id(1), .tensor = 0};
  FetchRequest slow = request({{.tensor = 0, .bytes = sizeof new_, .base = base}});
  FetchRequest fast = slow;
  fast.link_bytes_per_second = 100'000'000'000;
  EXPECT_EQ((*desk_.open(fast))->answer(0)->encoding, Encoding::dense);
  EXPECT_EQ((*desk_.open(slow))->answer(0)->encoding, Encoding::delta);
  EXPECT_EQ((*desk_.open(fast))->answer(0)->encoding, Encoding::delta);
}

}  // namespace
}  // namespace freshet::source
