// SPDX-License-Identifier: Apache-2.0
#include "transport/source/served_segments.h"

#include <gtest/gtest.h>

#include <thread>

namespace freshet::source {
namespace {

SegmentName name(std::uint64_t sequence) {
  return {.writer = {.run = {.high = 1, .low = 2}, .incarnation = 3, .sequence = sequence}, .tensor = 0};
}

class ServedSegmentsTest : public ::testing::Test {
 protected:
  void add(std::uint64_t sequence, SegmentIndex segment) {
    const SegmentName names[] = {name(sequence)};
    const SegmentIndex segments[] = {segment};
    const Bytes memory[] = {Bytes(memory_).subspan(segment, 1)};
    served_->add(names, segments, memory);
  }
  void free(SegmentIndex segment) { served_->free(std::span(&segment, 1)); }

  std::array<std::byte, 8> memory_{};
  std::vector<SegmentIndex> freed_;
  std::shared_ptr<ServedSegments> served_ = ServedSegments::make([this](std::span<const SegmentIndex> segments) {
    freed_.insert(freed_.end(), segments.begin(), segments.end());
  });
};

TEST_F(ServedSegmentsTest, ANameIsFoundUntilItsSegmentIsFreed) {
  EXPECT_FALSE(served_->pin(name(1)));
  add(1, 5);
  const auto pin = served_->pin(name(1));
  ASSERT_TRUE(pin);
  EXPECT_EQ(pin->bytes().data(), memory_.data() + 5);
  EXPECT_FALSE(served_->pin(name(2)));
}

TEST_F(ServedSegmentsTest, WhatNobodyReadsIsFreedAtOnce) {
  add(1, 5);
  free(5);
  EXPECT_EQ(freed_, std::vector<SegmentIndex>{5});
  EXPECT_FALSE(served_->pin(name(1)));
}

TEST_F(ServedSegmentsTest, WhatIsReadIsFreedWithItsLastPin) {
  add(1, 5);
  auto first = served_->pin(name(1));
  auto second = served_->pin(name(1));
  free(5);
  EXPECT_FALSE(served_->pin(name(1))) << "freed: nobody new may read it";
  first.reset();
  EXPECT_TRUE(freed_.empty());
  second.reset();
  EXPECT_EQ(freed_, std::vector<SegmentIndex>{5});
}

TEST_F(ServedSegmentsTest, ASegmentIsWrittenAgainUnderAnotherName) {
  add(1, 5);
  free(5);
  add(2, 5);
  EXPECT_FALSE(served_->pin(name(1)));
  EXPECT_TRUE(served_->pin(name(2)));
  free(5);
  EXPECT_EQ(freed_, (std::vector<SegmentIndex>{5, 5}));
}

TEST_F(ServedSegmentsTest, AnotherSegmentOfTheSameNameTakesItsPlace) {
  add(1, 5);
  add(1, 6);
  free(5);
  const auto pin = served_->pin(name(1));
  ASSERT_TRUE(pin);
  EXPECT_EQ(pin->bytes().data(), memory_.data() + 6);
}

TEST_F(ServedSegmentsTest, SegmentsThatNoVersionNamedAreHandedOn) {
  free(7);
  EXPECT_EQ(freed_, std::vector<SegmentIndex>{7});
}

TEST_F(ServedSegmentsTest, ClosingWaitsForTheLastPin) {
  add(1, 5);
  auto pin = served_->pin(name(1));
  free(5);
  std::thread reader([this, held = std::move(pin)]() mutable {
    EXPECT_TRUE(freed_.empty());
    held.reset();
  });
  served_->close();
  EXPECT_EQ(freed_, std::vector<SegmentIndex>{5});
  reader.join();
  EXPECT_FALSE(served_->pin(name(1)));
}

}  // namespace
}  // namespace freshet::source
