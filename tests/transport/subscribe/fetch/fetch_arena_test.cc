// SPDX-License-Identifier: Apache-2.0
/// The ledger of what a fetching subscriber's memory holds.

#include "transport/subscribe/fetch/fetch_arena.h"
#include "tests/support/refused.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

namespace freshet::detail {
namespace {

constexpr std::uint64_t kBytes = 8192;

class FetchArenaTest : public ::testing::Test {
 protected:
  static std::shared_ptr<const Architecture> architecture(std::size_t tensors) {
    std::vector<TensorSpec> specs;
    for (std::size_t t = 0; t < tensors; ++t) {
      specs.push_back({.name = "t" + std::to_string(t), .dtype = DType::u8, .shape = {kBytes}});
    }
    return *Architecture::guess_chain(std::move(specs));
  }
  static Content content(std::uint32_t tensor, std::uint64_t sequence) {
    return {.name = {.writer = {.incarnation = 1, .sequence = sequence}, .tensor = tensor},
            .digest = {.low = sequence, .high = tensor},
            .bytes = kBytes};
  }
  /// A segment that holds the content, referred to once.
  SegmentIndex fill(std::uint32_t tensor, std::uint64_t sequence) {
    FetchArena::Want want{.tensor = tensor, .bytes = kBytes};
    const Status room = arena_.acquire({&want, 1});
    EXPECT_TRUE(room) << room.error().message();
    const MutableBytes memory = arena_.write(*want.segment);
    std::fill(memory.begin(), memory.end(), static_cast<std::byte>(sequence));
    arena_.prove(*want.segment, content(tensor, sequence));
    return *want.segment;
  }

  FetchArena arena_{{.name = "test", .copies = 2, .limit_bytes = 6 * kBytes, .lock_memory = false}};
};

TEST_F(FetchArenaTest, TouchesAsManyCopiesAsItIsTold) {
  ASSERT_TRUE(arena_.prepare(*architecture(2)));
  EXPECT_EQ(arena_.stat().arena_bytes, 4 * kBytes);
  EXPECT_EQ(arena_.stat().arena_free_bytes, 4 * kBytes);
  ASSERT_TRUE(arena_.prepare(*architecture(2)));
  EXPECT_EQ(arena_.stat().arena_bytes, 4 * kBytes);
}

TEST_F(FetchArenaTest, AModelThatDoesNotFitIsTold) {
  EXPECT_TRUE(is_refused(arena_.prepare(*architecture(7)), Code::out_of_space));
}

TEST_F(FetchArenaTest, EmptyTensorsHaveSegmentsToo) {
  const auto empty = [] {
    std::vector<TensorSpec> specs;
    for (const char* name : {"a", "b"}) specs.push_back({.name = name, .dtype = DType::u8, .shape = {0}});
    return *Architecture::guess_chain(std::move(specs));
  };
  ASSERT_TRUE(arena_.prepare(*empty()));
  std::vector<FetchArena::Want> wants = {{.tensor = 0}, {.tensor = 1}};
  ASSERT_TRUE(arena_.acquire(wants));
  ASSERT_TRUE(wants[0].segment && wants[1].segment);
  EXPECT_NE(*wants[0].segment, *wants[1].segment);
  arena_.let_go(*wants[0].segment);
  arena_.let_go(*wants[1].segment);

  FetchArena too_small({.name = "test", .limit_bytes = 100, .lock_memory = false});
  EXPECT_TRUE(is_refused(too_small.prepare(*empty()), Code::out_of_space));
  wants = {{.tensor = 0}};
  EXPECT_FALSE(too_small.acquire(wants));
  EXPECT_FALSE(wants[0].segment);
}

TEST_F(FetchArenaTest, WhatIsFreeIsFoundUntilItIsWritten) {
  ASSERT_TRUE(arena_.prepare(*architecture(1)));
  const SegmentIndex first = fill(0, 1);
  EXPECT_EQ(arena_.find(content(0, 1)), first);
  arena_.let_go(first);
  EXPECT_EQ(arena_.find(content(0, 1)), first);
  arena_.refer(first);
  EXPECT_EQ(static_cast<int>(arena_.bytes(first)[5]), 1);
  arena_.let_go(first);
  FetchArena::Want want{.tensor = 0, .bytes = kBytes};
  ASSERT_TRUE(arena_.acquire({&want, 1}));
  ASSERT_EQ(want.segment, first) << "a tensor's own shadow is written first";
  EXPECT_EQ(*arena_.content(first), content(0, 1)) << "it is a shadow still";
  EXPECT_FALSE(arena_.find(content(0, 1))) << "but nobody else's";
  arena_.write(first);
  EXPECT_EQ(arena_.content(first), nullptr);
  arena_.let_go(first);
  EXPECT_FALSE(arena_.find(content(0, 1)));
}

TEST_F(FetchArenaTest, OneNameForTwoContentsMixesNothing) {
  ASSERT_TRUE(arena_.prepare(*architecture(1)));
  const SegmentIndex first = fill(0, 1);
  Content lie = content(0, 1);
  lie.digest.low ^= 1;
  EXPECT_FALSE(arena_.find(lie));
  lie = content(0, 1);
  --lie.bytes;
  EXPECT_FALSE(arena_.find(lie));
  EXPECT_EQ(arena_.find(content(0, 1)), first);
  arena_.let_go(first);
}

TEST_F(FetchArenaTest, ASegmentIsFreeWhenTheLastReferenceGoes) {
  ASSERT_TRUE(arena_.prepare(*architecture(1)));
  const SegmentIndex first = fill(0, 1);
  arena_.refer(first);
  arena_.let_go(first);
  const std::uint64_t free_bytes = arena_.stat().arena_free_bytes;
  EXPECT_EQ(free_bytes, kBytes);
  arena_.let_go(first);
  EXPECT_EQ(arena_.stat().arena_free_bytes, 2 * kBytes);
}

TEST_F(FetchArenaTest, AFullArenaSaysSo) {
  ASSERT_TRUE(arena_.prepare(*architecture(2)));
  std::vector<SegmentIndex> live;
  for (std::uint64_t i = 0; i < 6; ++i) live.push_back(fill(static_cast<std::uint32_t>(i % 2), i + 1));
  FetchArena::Want want{.tensor = 0, .bytes = kBytes};
  EXPECT_TRUE(is_refused(arena_.acquire({&want, 1}), Code::out_of_space));
  EXPECT_FALSE(want.segment);
  arena_.let_go(live.back());
  ASSERT_TRUE(arena_.acquire({&want, 1}));
  arena_.let_go(*want.segment);
  live.pop_back();
  arena_.let_go(live);
}

TEST_F(FetchArenaTest, WhatWasMeltedIntoAnotherIsNotFound) {
  ASSERT_TRUE(arena_.prepare(*architecture(2)));
  std::vector<SegmentIndex> live;
  for (std::uint64_t i = 0; i < 6; ++i) live.push_back(fill(0, i + 1));
  arena_.let_go(live);
  // Larger than any segment: free neighbours become one.
  FetchArena::Want want{.tensor = 9, .bytes = 2 * kBytes};
  ASSERT_TRUE(arena_.acquire({&want, 1}));
  const MutableBytes memory = arena_.write(*want.segment);
  std::fill(memory.begin(), memory.end(), std::byte{0xEE});
  int found = 0;
  for (std::uint64_t i = 0; i < 6; ++i) {
    const auto segment = arena_.find(content(0, i + 1));
    if (!segment) continue;
    ++found;
    arena_.refer(*segment);
    EXPECT_EQ(static_cast<std::uint64_t>(arena_.bytes(*segment)[0]), i + 1);
    arena_.let_go(*segment);
  }
  EXPECT_EQ(found, 4);
  arena_.let_go(*want.segment);
}

TEST_F(FetchArenaTest, WhatIsDistrustedIsNotFoundButStays) {
  ASSERT_TRUE(arena_.prepare(*architecture(1)));
  const SegmentIndex first = fill(0, 1);
  arena_.distrust(first);
  EXPECT_FALSE(arena_.find(content(0, 1)));
  EXPECT_EQ(arena_.content(first), nullptr);
  EXPECT_EQ(static_cast<int>(arena_.bytes(first)[0]), 1);
  arena_.let_go(first);
  EXPECT_FALSE(arena_.find(content(0, 1)));
}

}  // namespace
}  // namespace freshet::detail
