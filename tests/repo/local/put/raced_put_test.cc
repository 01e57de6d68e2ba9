// SPDX-License-Identifier: Apache-2.0
/// Puts of which somebody retires what they inherit, between their first step and their last.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <stop_token>
#include <thread>

#include "tests/repo/world.h"
#include "tests/support/eventually.h"
#include "tests/support/refused.h"

namespace freshet {
namespace {

class RacedPut : public testing::Test {
 protected:
  static constexpr std::size_t kTensors = 12;

  RacedPut() {
    const auto architecture = test_architecture(std::vector<std::uint64_t>(kTensors, 50));
    for (std::uint64_t i = 1; i <= kTensors; ++i) {
      writers_.push_back(make_version("old", test_id(i), architecture, nullptr, {}, random_));
      EXPECT_TRUE(put(*repository_, writers_.back()));
    }
    // Each tensor but the last comes from another version, none of which is an ancestor.
    mixed_ = make_version("net", test_id(100), architecture, nullptr, {}, random_);
    std::vector<SegmentName> owners;
    for (std::uint32_t tensor = 0; tensor + 1 < kTensors; ++tensor) {
      owners.push_back({.writer = writers_[tensor].manifest.id, .tensor = tensor});
      mixed_.bytes[tensor] = writers_[tensor].bytes[tensor];
      mixed_.manifest.digests[tensor] = writers_[tensor].manifest.digests[tensor];
    }
    owners.push_back({.writer = mixed_.manifest.id, .tensor = kTensors - 1});
    mixed_.manifest.owners = OwnerMap(std::move(owners));
  }
  /// Puts it while others retire, each time that its last tensor is asked for, the next `each` versions.
  Result<VersionName> put_raced(std::size_t each, std::size_t most) {
    std::size_t next = 0;
    const auto bytes_of = [&](std::uint32_t tensor) -> Result<Bytes> {
      asked_.push_back(tensor);
      if (tensor + 1 == kTensors) {
        const std::size_t end = std::min(next + each, most);
        std::jthread([&, end] {
          for (; next < end; ++next) EXPECT_TRUE(repository_->retire({.model = "old", .number = next + 1}, {}));
        }).join();
      }
      return Bytes(mixed_.bytes[tensor]);
    };
    return repository_->put(mixed_.manifest, bytes_of, {});
  }

  std::mt19937_64 random_{20261121};
  std::unique_ptr<Repository> repository_ = open_or_die(make_memory_backend());
  std::vector<TestVersion> writers_;
  TestVersion mixed_;
  std::vector<std::uint32_t> asked_;
};

TEST_F(RacedPut, AsksForWhatWasRetiredMeanwhile) {
  const auto name = put_raced(2, 2);
  ASSERT_TRUE(name) << name.error().message();
  EXPECT_EQ(to_string(*name), "net@1");
  EXPECT_EQ(read_all(*repository_, *name).value(), mixed_.bytes);
  EXPECT_THAT(asked_, ::testing::ElementsAre(kTensors - 1, 0, 1, kTensors - 1));
  ASSERT_TRUE(repository_->gc({}, {}));
  EXPECT_EQ(read_all(*repository_, *name).value(), mixed_.bytes);
  const auto report = repository_->verify(std::nullopt, {});
  EXPECT_TRUE(report->corrupt.empty());
}

TEST_F(RacedPut, TriesAgainAsOftenAsThatHelps) {
  mixed_.manifest.digests.back() = {};  // That of the bytes that come, each time.
  const auto name = put_raced(1, 6);
  ASSERT_TRUE(name) << name.error().message();
  EXPECT_EQ(read_all(*repository_, *name).value(), mixed_.bytes);
  EXPECT_EQ(std::ranges::count(asked_, kTensors - 1), 7);
}

TEST_F(RacedPut, GivesUpInTheEndAndLeavesNothing) {
  EXPECT_TRUE(is_refused(put_raced(1, kTensors), Code::failed_precondition));
  EXPECT_EQ(std::ranges::count(asked_, kTensors - 1), 8);
  EXPECT_FALSE(repository_->find(mixed_.manifest.id).value());
  ASSERT_TRUE(repository_->gc({}, {}));
  const auto report = repository_->verify(std::nullopt, {});
  EXPECT_TRUE(report->corrupt.empty());
  EXPECT_TRUE(report->unneeded.empty());
  const auto again = put(*repository_, mixed_);
  ASSERT_TRUE(again) << again.error().message();
  EXPECT_EQ(read_all(*repository_, *again).value(), mixed_.bytes);
}

TEST_F(RacedPut, AStopEndsTheWaitForAnotherPut) {
  std::stop_source stop;
  stop.request_stop();
  Result<VersionName> waited = fail(Code::io_error, "it has not ended");
  std::atomic<bool> ended = false;
  std::jthread other;
  const auto bytes_of = [&](std::uint32_t tensor) -> Result<Bytes> {
    other = std::jthread([&] {
      waited = put(*repository_, mixed_, {.stop = stop.get_token()});
      ended = true;
    });
    EXPECT_TRUE(came_true([&] { return ended.load(); }));
    return Bytes(mixed_.bytes[tensor]);
  };
  EXPECT_TRUE(repository_->put(mixed_.manifest, bytes_of, {}));
  other.join();
  EXPECT_EQ(waited.error().code(), Code::cancelled);
}

TEST_F(RacedPut, AnAncestorThatGoesMeanwhileIsStillRefused) {
  mixed_.manifest.ancestor = writers_[0].manifest.id;
  EXPECT_TRUE(is_refused(put_raced(1, 1), Code::failed_precondition, "its ancestor old@1 was retired"));
}

}  // namespace
}  // namespace freshet
