// SPDX-License-Identifier: Apache-2.0
/// Bytes that were proved once and are not what they were.

#include "transport/subscribe/scrub.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace freshet::detail {
namespace {

class ScrubTest : public ::testing::Test {
 protected:
  /// A version whose tensors have these sizes, in the arena.
  std::shared_ptr<const FetchedMemory> serve(const std::vector<std::uint64_t>& sizes, bool prepared = false) {
    std::vector<TensorSpec> specs;
    for (std::size_t t = 0; t < sizes.size(); ++t) {
      specs.push_back({.name = "t" + std::to_string(t), .dtype = DType::u8, .shape = {sizes[t]}});
    }
    auto manifest = std::make_shared<Manifest>();
    manifest->id = {.incarnation = 1, .sequence = ++sequence_};
    manifest->architecture = *Architecture::guess_chain(std::move(specs));
    manifest->owners = OwnerMap::all_written_by(manifest->id, sizes.size());
    if (!prepared) {
      EXPECT_TRUE(arena_->prepare(*manifest->architecture));
    }
    std::vector<FetchArena::Want> wants;
    for (std::uint32_t t = 0; t < sizes.size(); ++t) wants.push_back({.tensor = t, .bytes = sizes[t]});
    EXPECT_TRUE(arena_->acquire(wants));
    FetchedVersion version;
    for (const FetchArena::Want& want : wants) {
      const MutableBytes memory = arena_->write(*want.segment);
      std::fill(memory.begin(), memory.end(), static_cast<std::byte>(want.tensor + sequence_));
      manifest->digests.push_back(digest_of(memory));
      version.segments.push_back(*want.segment);
    }
    version.manifest = manifest;
    for (const FetchArena::Want& want : wants) arena_->prove(*want.segment, content_of(*manifest, want.tensor));
    return std::make_shared<const FetchedMemory>(arena_, std::move(version));
  }
  static void lose_a_bit(const FetchedMemory& memory, std::uint32_t tensor) {
    const Bytes bytes = memory.bytes(tensor);
    const_cast<std::byte&>(bytes[bytes.size() / 2]) ^= std::byte{8};
  }
  /// Steps until a round is over. What was found, in order.
  std::vector<std::uint32_t> round(Scrub& scrub, const FetchedMemory& served) {
    std::vector<std::uint32_t> found;
    for (const std::uint64_t rounds = scrub.rounds(); scrub.rounds() == rounds;) {
      now_ = std::max(now_, scrub.next_step());
      if (const auto tensor = scrub.step(served, now_)) found.push_back(*tensor);
    }
    return found;
  }

  std::uint64_t sequence_ = 0;
  Time now_ = Time() + std::chrono::hours(1);
  std::shared_ptr<FetchArena> arena_ =
      std::make_shared<FetchArena>(FetchArena::Options{.name = "test", .copies = 2, .lock_memory = false});
};

TEST_F(ScrubTest, FindsALostBitOnce) {
  const auto served = serve({100, Scrub::kStepBytes * 2 + 5, 0, 700});
  Scrub scrub(std::chrono::minutes(10));
  EXPECT_TRUE(round(scrub, *served).empty());
  lose_a_bit(*served, 1);
  lose_a_bit(*served, 3);
  EXPECT_EQ(round(scrub, *served), (std::vector<std::uint32_t>{1, 3}));
  EXPECT_EQ(arena_->content(served->version().segments[1]), nullptr);
  EXPECT_NE(arena_->content(served->version().segments[0]), nullptr);
  EXPECT_TRUE(round(scrub, *served).empty()) << "it is told once";
}

TEST_F(ScrubTest, TakesItsIntervalForARound) {
  const auto served = serve({Scrub::kStepBytes * 8});
  Scrub scrub(std::chrono::seconds(80));
  const Time began = now_;
  EXPECT_TRUE(round(scrub, *served).empty());
  EXPECT_EQ(now_ - began, std::chrono::seconds(70)) << "eight steps, a pause between each two";
  EXPECT_FALSE(scrub.step(*served, now_)) << "before its time nothing is read";
  EXPECT_EQ(scrub.rounds(), 1u);
}

TEST_F(ScrubTest, FollowsToTheNextVersionInTheMiddleOfATensor) {
  const auto first = serve({Scrub::kStepBytes * 3, 50});
  Scrub scrub(std::chrono::seconds(10));
  scrub.step(*first, now_);
  const auto second = serve({Scrub::kStepBytes * 3, 50});
  EXPECT_TRUE(round(scrub, *second).empty());
  const auto smaller = serve({70});
  EXPECT_TRUE(round(scrub, *smaller).empty());
}

TEST_F(ScrubTest, ASegmentThatWasWrittenAnewMeanwhileIsBegunAnew) {
  auto first = serve({Scrub::kStepBytes * 3, 50});
  Scrub scrub(std::chrono::seconds(10));
  scrub.step(*first, now_);
  const SegmentIndex segment = first->version().segments[0];
  const auto second = serve({Scrub::kStepBytes * 3, 50});
  first.reset();
  const auto third = serve({Scrub::kStepBytes * 3, 50}, /*prepared=*/true);
  ASSERT_EQ(third->version().segments[0], segment);
  EXPECT_TRUE(round(scrub, *third).empty()) << "a part of its digest is of the bytes before";
}

TEST_F(ScrubTest, AnIntervalOfZeroIsNever) {
  const auto served = serve({100});
  lose_a_bit(*served, 0);
  Scrub scrub(Duration(0));
  EXPECT_FALSE(scrub.step(*served, now_));
  EXPECT_EQ(scrub.next_step(), Time::max());
}

}  // namespace
}  // namespace freshet::detail
