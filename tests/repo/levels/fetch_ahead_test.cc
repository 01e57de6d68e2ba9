// SPDX-License-Identifier: Apache-2.0
#include "repo/levels/restart/fetch_ahead.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <latch>
#include <thread>
#include <vector>

namespace freshet::levels {
namespace {

constexpr std::size_t kLarge = std::size_t{16} << 20;

/// Tensors of these lengths; what was fetched is marked at both its ends.
class FetchAheadTest : public testing::Test {
 protected:
  std::vector<WantedPiece> wanted(const std::vector<std::size_t>& lengths) {
    std::vector<WantedPiece> pieces;
    for (const std::size_t length : lengths) memory_.emplace_back(length);
    for (std::uint32_t i = 0; i < memory_.size(); ++i) {
      pieces.push_back({.piece = {.tensor = i, .count = 1, .stride = lengths[i], .begin = 0, .length = lengths[i]},
                        .out = memory_[i]});
    }
    return pieces;
  }
  FetchAhead::Fetch fetch() {
    return [this](std::span<const WantedPiece> pieces, const std::stop_token& end) -> Status {
      EXPECT_FALSE(is_fetching_.exchange(true)) << "two threads fetch";
      const bool fails = pieces.front().piece.tensor == fails_once_;
      if (fails) fails_once_ = kNone;
      if (pieces.front().piece.tensor == waits_for_end_) {
        waits_for_end_ = kNone;
        waits_.count_down();
        while (!end.stop_requested()) std::this_thread::yield();
      }
      fetched_ += pieces.size();
      for (const WantedPiece& one : pieces) one.out.front() = one.out.back() = mark_of(one.piece.tensor);
      is_fetching_ = false;
      return fails ? fail(Code::unavailable, "the source is away") : Status();
    };
  }
  bool is_there(std::uint32_t tensor) const {
    return memory_[tensor].front() == mark_of(tensor) && memory_[tensor].back() == mark_of(tensor);
  }
  static std::byte mark_of(std::uint32_t tensor) { return static_cast<std::byte>(tensor + 1); }

  std::vector<std::vector<std::byte>> memory_;
  std::atomic<bool> is_fetching_ = false;
  std::atomic<std::size_t> fetched_ = 0;  ///< Tensors.
  static constexpr std::uint32_t kNone = 1000;
  std::atomic<std::uint32_t> fails_once_ = kNone;     ///< The batch that begins with this tensor.
  std::atomic<std::uint32_t> waits_for_end_ = kNone;  ///< The same, until the fetch is stopped.
  std::latch waits_{1};
};

TEST_F(FetchAheadTest, WhatIsWaitedForIsThere) {
  FetchAhead ahead(wanted({kLarge, 1, kLarge, 7, 7, kLarge, kLarge}), fetch());
  EXPECT_EQ(fetched_, 0U) << "nobody waited yet";
  for (std::uint32_t tensor = 0; tensor < memory_.size(); ++tensor) {
    ASSERT_TRUE(ahead.wait_for(tensor + 1));
    EXPECT_TRUE(is_there(tensor)) << tensor;
    ASSERT_TRUE(ahead.wait_for(tensor)) << "again";
  }
  EXPECT_EQ(fetched_, memory_.size()) << "each once";
}

TEST_F(FetchAheadTest, ABatchIsFetchedWhileTheOneBeforeIsUsedAndItsEndStopsIt) {
  FetchAhead ahead(wanted({kLarge, kLarge, kLarge}), fetch());
  waits_for_end_ = 1;
  ASSERT_TRUE(ahead.wait_for(1)) << "the second batch does not end";
  waits_.wait();
  EXPECT_EQ(fetched_, 1U);
}

TEST_F(FetchAheadTest, WhoWaitsForTheLastGetsAll) {
  FetchAhead ahead(wanted({kLarge, kLarge, 3, kLarge}), fetch());
  ASSERT_TRUE(ahead.wait_for(memory_.size()));
  for (std::uint32_t tensor = 0; tensor < memory_.size(); ++tensor) EXPECT_TRUE(is_there(tensor)) << tensor;
}

TEST_F(FetchAheadTest, AnErrorIsOfItsBatchAloneWhichMayBeFetchedAgain) {
  FetchAhead ahead(wanted({kLarge, kLarge}), fetch());
  fails_once_ = 1;
  ASSERT_TRUE(ahead.wait_for(1));
  const Status failed = ahead.wait_for(2);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().message(), "the source is away");
  ASSERT_TRUE(ahead.wait_for(2));
  EXPECT_TRUE(is_there(0) && is_there(1));
}

}  // namespace
}  // namespace freshet::levels
