// SPDX-License-Identifier: Apache-2.0
#include "repo/parts/part_desk.h"

#include <gtest/gtest.h>

#include "repo/parts/part_books.h"
#include "tests/repo/world.h"
#include "tests/support/refused.h"

namespace freshet {
namespace {

class PartDeskTest : public testing::Test {
 protected:
  void open(std::uint64_t bytes_max = std::uint64_t{1} << 20) {
    repository_ = *Repository::open(make_memory_backend(), {.clock = &clock_});
    desk_ = std::make_unique<PartDesk>(*repository_, clock_, bytes_max);
  }
  PutToken begun() { return *desk_->begin_put("net", version_.manifest.id, architecture_); }
  Status bring(const PutToken& token, std::uint32_t tensor) {
    const TensorPart part = whole_part(*architecture_, tensor, version_.bytes[tensor]);
    return desk_->put_parts(token, std::span(&part, 1));
  }

  ManualClock clock_;
  std::mt19937_64 random_{3};
  const std::shared_ptr<const Architecture> architecture_ = test_architecture({1000, 400'000});
  const TestVersion version_ = make_version("net", test_id(1), architecture_, nullptr, {}, random_);
  std::unique_ptr<Repository> repository_;
  std::unique_ptr<PartDesk> desk_;
};

TEST_F(PartDeskTest, APutEndsWithItsLease) {
  open();
  const PutToken token = begun();
  ASSERT_TRUE(bring(token, 0));
  EXPECT_GE(desk_->bytes(), 1000u);
  clock_.advance(kPutLease);
  // Each call is one more life.
  ASSERT_TRUE(bring(token, 0));
  clock_.advance(kPutLease);
  EXPECT_TRUE(desk_->part_digests(token));
  clock_.advance(kPutLease);
  desk_->drop_ended();
  EXPECT_TRUE(bring(token, 0));
  clock_.advance(kPutLease + Duration(1));
  desk_->drop_ended();
  EXPECT_EQ(desk_->bytes(), 0u) << "its memory is given back";
  EXPECT_EQ(bring(token, 0).error().code(), Code::not_found);
  EXPECT_EQ(desk_->commit_put(token, version_.manifest, {}).error().code(), Code::not_found);
  EXPECT_TRUE(repository_->models()->empty());
}

TEST_F(PartDeskTest, ARunningCallKeepsAPut) {
  open();
  const PutToken token = begun();
  auto kept = desk_->keep_open(token);
  ASSERT_TRUE(kept);
  clock_.advance(10 * kPutLease);
  desk_->drop_ended();
  EXPECT_TRUE(bring(token, 0));
  kept->reset();
  clock_.advance(kPutLease + Duration(1));
  EXPECT_EQ(bring(token, 0).error().code(), Code::not_found);
  EXPECT_EQ(desk_->keep_open(token).error().code(), Code::not_found);
}

TEST_F(PartDeskTest, MemoryHasALimit) {
  open(450'000);
  const PutToken first = begun();
  ASSERT_TRUE(bring(first, 1));
  const std::uint64_t before = desk_->bytes();
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(bring(first, 1)) << "what comes again takes no more";
  EXPECT_EQ(desk_->bytes(), before);
  const PutToken second = begun();
  const std::uint64_t with_second = desk_->bytes();
  EXPECT_TRUE(is_refused(bring(second, 1), Code::out_of_space));
  EXPECT_EQ(desk_->bytes(), with_second);
  ASSERT_TRUE(bring(second, 0));
  ASSERT_TRUE(desk_->abort_put(first));
  ASSERT_TRUE(bring(second, 1));
  ASSERT_TRUE(desk_->commit_put(second, version_.manifest, {}));
  EXPECT_EQ(desk_->bytes(), 0u);
  EXPECT_EQ(read_all(*repository_, {.model = "net"}).value(), version_.bytes);
}

TEST_F(PartDeskTest, MemoryCountsWhatCameAndNotWhatWillCome) {
  constexpr std::uint64_t kMiB = 1 << 20;
  open(16 * kMiB + kMiB / 2);
  const PutToken hog = *desk_->begin_put("net", test_id(7), test_architecture({16 * kMiB, 16 * kMiB}));
  const std::vector<std::byte> bytes(4 * kMiB);
  const auto bring_at = [&](std::uint32_t tensor, std::uint64_t offset, std::uint64_t length) {
    const TensorPart part{.tensor = tensor, .offset = offset, .length = length, .bytes = Bytes(bytes).first(length)};
    return desk_->put_parts(hog, std::span(&part, 1));
  };
  ASSERT_TRUE(bring_at(0, 5 * kMiB, 1));
  EXPECT_LE(desk_->bytes(), 3 * kMiB);
  const std::uint64_t one_byte = desk_->bytes();
  ASSERT_TRUE(bring_at(0, 5 * kMiB + 1, 1));
  EXPECT_LE(desk_->bytes(), one_byte + 1000) << "a byte beside it";
  EXPECT_TRUE(bring(begun(), 1)) << "others have room";
  ASSERT_TRUE(bring_at(0, 8 * kMiB, 4 * kMiB));
  EXPECT_GE(desk_->bytes(), 6 * kMiB);
  EXPECT_FALSE(bring_at(0, 8 * kMiB, 8)) << "these came";
  EXPECT_TRUE(bring_at(1, 0, 4 * kMiB));
  EXPECT_TRUE(bring_at(1, 4 * kMiB, 4 * kMiB));
  const std::uint64_t before = desk_->bytes();
  EXPECT_EQ(bring_at(1, 8 * kMiB, 4 * kMiB).error().code(), Code::out_of_space);
  EXPECT_EQ(desk_->bytes(), before);
  ASSERT_TRUE(desk_->abort_put(hog));
  EXPECT_LT(desk_->bytes(), kMiB);
}

TEST_F(PartDeskTest, OneOwnerLeavesPutsToOthers) {
  open();
  for (std::ptrdiff_t i = 0; i < kPartPutsOfOneMax; ++i) {
    ASSERT_TRUE(desk_->begin_put_for("many", "net", test_id(static_cast<std::uint64_t>(i) + 1), architecture_));
  }
  EXPECT_TRUE(
      is_refused(desk_->begin_put_for("many", "net", test_id(9999), architecture_), Code::out_of_space, "of this key"));
  EXPECT_TRUE(desk_->begin_put_for("few", "net", test_id(9999), architecture_));
}

TEST_F(PartDeskTest, PutsAtATimeHaveALimit) {
  open();
  for (std::size_t i = 0; i < kPartPutsMax; ++i) ASSERT_TRUE(desk_->begin_put("net", test_id(i + 1), architecture_));
  EXPECT_EQ(desk_->begin_put("net", test_id(9999), architecture_).error().code(), Code::out_of_space);
  clock_.advance(kPutLease + Duration(1));
  EXPECT_TRUE(desk_->begin_put("net", test_id(9999), architecture_));
}

TEST(PartBooks, TheyKnowEachByte) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const std::uint64_t bytes = 1 + random() % 60;
    PartBooks books(bytes);
    std::vector<bool> covered(bytes);
    for (int step = 0; step < 200 && !books.is_complete(); ++step) {
      TensorPart part{.length = 1 + random() % 5};
      part.count = 1 + random() % 4;
      part.stride = part.length + random() % 4;
      part.offset = random() % bytes;
      if (part.offset + (part.count - 1) * part.stride + part.length > bytes) continue;
      std::vector<std::uint64_t> touched;
      for (std::uint64_t run = 0; run < part.count; ++run) {
        for (std::uint64_t i = 0; i < part.length; ++i) touched.push_back(part.offset + run * part.stride + i);
      }
      const bool is_free = std::ranges::none_of(touched, [&](std::uint64_t at) { return covered[at]; });
      // Equal runs with an equal digest are not there twice, since each step has its own.
      const auto added = books.add(part, Digest{.low = static_cast<std::uint64_t>(step), .high = seed});
      ASSERT_EQ(added.has_value(), is_free);
      for (const std::uint64_t at : touched) covered[at] = covered[at] || is_free;
      ASSERT_EQ(books.bytes(), static_cast<std::uint64_t>(std::ranges::count(covered, true)));
      ASSERT_EQ(books.is_complete(), books.bytes() == bytes);
      if (books.is_complete()) break;
      const auto hole = books.first_hole();
      const auto first = std::ranges::find(covered, false);
      ASSERT_EQ(hole.begin, static_cast<std::uint64_t>(first - covered.begin()));
      ASSERT_EQ(hole.end, static_cast<std::uint64_t>(std::find(first, covered.end(), true) - covered.begin()));
    }
  }
}

TEST(PutToken, TextAndBack) {
  const PutToken alone{.high = 0x0123456789abcdef, .low = 0xf, .provider = {}};
  EXPECT_EQ(to_string(alone), "0123456789abcdef000000000000000f");
  EXPECT_EQ(parse_put_token(to_string(alone)).value(), alone);
  const PutToken named{.high = 1, .low = ~std::uint64_t{0}, .provider = "p-1.x_Y"};
  EXPECT_EQ(parse_put_token(to_string(named)).value(), named);
  for (const std::string text : {"", "0123", "0123456789abcdef000000000000000", "0123456789abcdef000000000000000g",
                                 "0123456789abcdef000000000000000f@", "0123456789abcdef000000000000000fp",
                                 "0123456789abcdef000000000000000f@a b", "-123456789abcdef000000000000000f"}) {
    EXPECT_FALSE(parse_put_token(text)) << text;
  }
  EXPECT_FALSE(parse_put_token(to_string(alone) + "@" + std::string(65, 'x')));
}

/// A slice that is partial on one axis, any one, is one part.
TEST(SliceParts, OneAxisIsOnePart) {
  const auto architecture = *Architecture::guess_chain({{.name = "t", .dtype = DType::u16, .shape = {5, 6, 7}}});
  const std::vector<std::byte> bytes(std::size_t{5 * 6 * 7 * 2});
  for (std::size_t axis = 0; axis < 3; ++axis) {
    Shape offset(3);
    Shape extent{5, 6, 7};
    offset[axis] = 2;
    extent[axis] = 3;
    const std::uint64_t count = extent[0] * extent[1] * extent[2] * 2;
    const auto parts = slice_parts(*architecture, 0, offset, extent, Bytes(bytes).first(count));
    ASSERT_TRUE(parts) << parts.error().message();
    EXPECT_EQ(parts->size(), 1u) << axis;
    EXPECT_TRUE(check_part(parts->at(0), *architecture));
  }
  EXPECT_TRUE(slice_parts(*architecture, 0, {1, 1, 1}, {0, 2, 2}, {})->empty());
  EXPECT_EQ(slice_parts(*architecture, 0, {1, 1, 1}, {2, 2, 2}, Bytes(bytes).first(16))->size(), 2u);
  EXPECT_FALSE(slice_parts(*architecture, 0, {1, 1, 1}, {2, 2, 2}, Bytes(bytes).first(15)));
  EXPECT_FALSE(slice_parts(*architecture, 0, {3, 0, 0}, {3, 6, 7}, Bytes(bytes).first(252)));
  EXPECT_FALSE(slice_parts(*architecture, 0, {0, 0}, {5, 6}, Bytes(bytes).first(60)));
  EXPECT_FALSE(slice_parts(*architecture, 1, {}, {}, {}));
}

TEST(SliceParts, OfHalvesOfBytesHaveWholeBytes) {
  const auto architecture = *Architecture::guess_chain(
      {{.name = "t", .dtype = DType::f4, .shape = {3, 6}}, {.name = "odd", .dtype = DType::f4, .shape = {2, 3}}});
  const std::vector<std::byte> bytes(9);
  const auto column = slice_parts(*architecture, 0, {1, 2}, {2, 4}, Bytes(bytes).first(4));
  ASSERT_TRUE(column) << column.error().message();
  ASSERT_EQ(column->size(), 1u);
  EXPECT_EQ(column->at(0).offset, 4u);
  EXPECT_EQ(column->at(0).count, 2u);
  EXPECT_EQ(column->at(0).stride, 3u);
  EXPECT_EQ(column->at(0).length, 2u);
  EXPECT_EQ(slice_parts(*architecture, 1, {0, 0}, {2, 3}, Bytes(bytes).first(3))->at(0).length, 3u);
  EXPECT_FALSE(slice_parts(*architecture, 0, {0, 1}, {3, 4}, Bytes(bytes).first(6)));
  EXPECT_FALSE(slice_parts(*architecture, 1, {0, 0}, {1, 3}, Bytes(bytes).first(1)));
}

}  // namespace
}  // namespace freshet
