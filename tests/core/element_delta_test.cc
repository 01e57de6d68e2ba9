// SPDX-License-Identifier: Apache-2.0
#include "core/delta/element_delta.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "core/base/digest.h"
#include "tests/support/refused.h"

namespace freshet {
namespace {

constexpr std::uint64_t kNoLimit = ~std::uint64_t{0};
constexpr VectorLevel kLevels[] = {VectorLevel::portable, VectorLevel::avx2, VectorLevel::avx512};

std::vector<DType> all_dtypes() {
  std::vector<DType> all;
  for (std::uint8_t number = 0; number < kDTypeCount; ++number) all.push_back(static_cast<DType>(number));
  return all;
}

using Buffer = std::vector<std::byte>;

SegmentName segment(std::uint64_t sequence) {
  return {.writer = {.run = {7, 8}, .incarnation = 2, .sequence = sequence}, .tensor = 3};
}

DeltaSpec spec_of(DType dtype) { return {.dtype = dtype, .base = segment(5), .target = segment(6)}; }

Buffer random_bytes(std::size_t count, std::mt19937_64& random) {
  Buffer bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

/// Changes each element with the given probability, half of them by a little and half into anything.
Buffer changed_from(const Buffer& base, std::size_t width, double density, std::mt19937_64& random) {
  Buffer target = base;
  std::bernoulli_distribution is_changed(density);
  for (std::size_t at = 0; at < base.size(); at += width) {
    if (!is_changed(random)) continue;
    if (random() % 2 == 0) {
      target[at] = static_cast<std::byte>(static_cast<int>(target[at]) + 1);
    } else {
      for (std::size_t i = 0; i < width; ++i) target[at + i] = static_cast<std::byte>(random());
    }
  }
  return target;
}

/// The oracle: elements that differ, byte by byte.
std::uint64_t count_by_bytes(const Buffer& a, const Buffer& b, std::size_t width) {
  std::uint64_t count = 0;
  for (std::size_t at = 0; at < a.size(); at += width) {
    count += std::memcmp(a.data() + at, b.data() + at, width) != 0;
  }
  return count;
}

/// There and back on every level; all levels write the same payload, which is returned.
Buffer round_trip(const DeltaSpec& spec, const Buffer& base, const Buffer& target) {
  Buffer payload;
  for (const VectorLevel level : kLevels) {
    if (!is_supported(level)) continue;
    SCOPED_TRACE(name_of(level));
    const auto encoded = encode_delta(spec, base, target, kNoLimit, level);
    EXPECT_TRUE(encoded.has_value());
    if (!encoded) return {};
    if (payload.empty()) payload = *encoded;
    EXPECT_EQ(*encoded, payload);
    Buffer memory = base;
    const Result<DeltaInfo> applied = apply_delta(spec, payload, memory, level);
    EXPECT_TRUE(applied.has_value()) << applied.error().message();
    EXPECT_EQ(memory, target);
    const Result<DeltaInfo> reverted = revert_delta(spec, payload, memory, level);
    EXPECT_TRUE(reverted.has_value()) << reverted.error().message();
    EXPECT_EQ(memory, base);
    if (!applied) continue;
    EXPECT_EQ(applied->elements, base.size() / word_bytes_of(spec.dtype));
    EXPECT_EQ(applied->changed_elements, count_by_bytes(base, target, word_bytes_of(spec.dtype)));
  }
  return payload;
}

TEST(ElementDelta, RoundTripsEveryDTypeAtEveryDensity) {
  std::mt19937_64 random(20261121);
  for (const DType dtype : all_dtypes()) {
    SCOPED_TRACE(name_of(dtype));
    const std::size_t width = word_bytes_of(dtype);
    for (const double density : {0.0, 0.0005, 0.01, 0.3, 1.0}) {
      const Buffer base = random_bytes(70000 * width, random);
      round_trip(spec_of(dtype), base, changed_from(base, width, density, random));
    }
  }
}

TEST(ElementDelta, RoundTripsSmallTensorsOfEverySize) {
  std::mt19937_64 random(3);
  for (const DType dtype : {DType::u8, DType::bf16, DType::f32, DType::f64}) {
    const std::size_t width = word_bytes_of(dtype);
    for (std::size_t elements = 0; elements <= 200; ++elements) {
      SCOPED_TRACE(testing::Message() << name_of(dtype) << ", " << elements << " elements");
      const Buffer base = random_bytes(elements * width, random);
      round_trip(spec_of(dtype), base, changed_from(base, width, 0.3, random));
    }
  }
}

TEST(ElementDelta, GapsAroundTheEscape) {
  for (const std::size_t gap : {0, 1, 253, 254, 255, 256, 509, 510, 511, 764, 765, 766, 40000}) {
    SCOPED_TRACE(gap);
    const Buffer base(200001 * 2);
    Buffer target = base;
    for (std::size_t at = gap; at < 200001; at += gap + 1) target[2 * at] = std::byte{9};
    round_trip(spec_of(DType::bf16), base, target);
  }
}

/// Blocks end at 2^24 elements and at 2^16 changes: both are passed here, and the last element is a change.
TEST(ElementDelta, BlocksEndAtTheirLimits) {
  const Buffer base(40'000'003);
  Buffer target = base;
  const Buffer unchanged = round_trip(spec_of(DType::u8), base, target);
  EXPECT_LT(unchanged.size(), 200);
  target.front() = target.back() = target[(1 << 24) - 1] = target[1 << 24] = std::byte{1};
  EXPECT_LT(round_trip(spec_of(DType::u8), base, target).size(), 1000);
  for (std::size_t at = 1'000'000; at < 1'400'000; ++at) target[at] = std::byte{2};
  round_trip(spec_of(DType::u8), base, target);
}

template <typename Bits>
void check_special_values(DType dtype, const std::vector<Bits>& values) {
  SCOPED_TRACE(name_of(dtype));
  std::vector<Bits> from;
  std::vector<Bits> to;
  for (const Bits a : values) {
    for (const Bits b : values) {
      from.push_back(a);
      to.push_back(b);
    }
  }
  const Bytes base = bytes_of(from.data(), from.size());
  const Bytes target = bytes_of(to.data(), to.size());
  round_trip(spec_of(dtype), Buffer(base.begin(), base.end()), Buffer(target.begin(), target.end()));
}

/// From each to each: zeros of both signs, smallest, largest, infinities, quiet and signalling NaNs with payloads.
TEST(ElementDelta, SpecialValuesComeOutToTheBit) {
  check_special_values<std::uint16_t>(DType::bf16, {0x0000, 0x8000, 0x0001, 0x8001, 0x7f7f, 0xff7f, 0x7f80, 0xff80,
                                                    0x7f81, 0xff81, 0x7fc0, 0xffff, 0x7fff, 0x3f80});
  check_special_values<std::uint16_t>(
      DType::f16, {0x0000, 0x8000, 0x0001, 0x8001, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7c01, 0xfe00, 0xffff, 0x7fff});
  check_special_values<std::uint32_t>(DType::f32, {0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x7f7fffff,
                                                   0x7f800000, 0xff800000, 0x7f800001, 0x7fc00000, 0xffffffff});
  check_special_values<std::uint64_t>(DType::f64, {0x0, 0x8000000000000000, 0x1, 0x8000000000000001, 0x7ff0000000000000,
                                                   0xfff0000000000000, 0x7ff0000000000001, 0xffffffffffffffff});
  check_special_values<std::uint64_t>(DType::i64, {0x0, 0x8000000000000000, 0x7fffffffffffffff, 0xffffffffffffffff});
  check_special_values<std::uint8_t>(DType::boolean, {0, 1, 2, 255});
}

/// Steps of one unit in the last place cost the same on both sides of zero, through it, and at powers of two.
TEST(ElementDelta, StepsToTheNextFloatAreSmall) {
  std::mt19937_64 random(4);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  std::vector<float> from(100000);
  std::vector<float> to(from.size());
  for (std::size_t i = 0; i < from.size(); ++i) {
    from[i] = i % 10 == 0 ? 0.0f : std::exp2(std::round(normal(random))) * (i % 2 == 0 ? 1.0f : -1.0f);
    to[i] = std::nextafter(from[i], random() % 2 == 0 ? 10.0f : -10.0f);
  }
  const Bytes base = bytes_of(from.data(), from.size());
  const Bytes target = bytes_of(to.data(), to.size());
  const Buffer payload =
      round_trip(spec_of(DType::f32), Buffer(base.begin(), base.end()), Buffer(target.begin(), target.end()));
  EXPECT_LT(payload.size(), from.size() / 4);
}

TEST(ElementDelta, SaysWhatItIs) {
  const Buffer base(1000);
  Buffer target = base;
  target[500] = std::byte{1};
  const auto payload = encode_delta(spec_of(DType::f16), base, target, kNoLimit);
  ASSERT_TRUE(payload);
  const Result<DeltaInfo> info = read_delta_info(*payload);
  ASSERT_TRUE(info.has_value());
  EXPECT_EQ(info->base, segment(5));
  EXPECT_EQ(info->target, segment(6));
  EXPECT_EQ(info->dtype, DType::f16);
  EXPECT_EQ(info->elements, 500);
  EXPECT_EQ(info->changed_elements, 1);
}

TEST(ElementDelta, KeepsToItsLimit) {
  std::mt19937_64 random(5);
  const Buffer base = random_bytes(400000, random);
  const Buffer target = changed_from(base, 4, 0.2, random);
  const auto payload = encode_delta(spec_of(DType::i32), base, target, kNoLimit);
  ASSERT_TRUE(payload);
  EXPECT_EQ(encode_delta(spec_of(DType::i32), base, target, payload->size()), payload);
  for (const std::uint64_t limit : {std::uint64_t{0}, std::uint64_t{100}, payload->size() / 2, payload->size() - 1}) {
    EXPECT_EQ(encode_delta(spec_of(DType::i32), base, target, limit), std::nullopt) << limit;
  }
}

/// A hundred thousand bf16 elements with a change in fifty, and its payload.
class ElementDeltaRefusal : public testing::Test {
 protected:
  void SetUp() override {
    std::mt19937_64 random(6);
    base_ = random_bytes(20000, random);
    target_ = changed_from(base_, 2, 0.02, random);
    payload_ = encode_delta(spec_, base_, target_, kNoLimit).value();
  }

  Code code_of(const DeltaSpec& spec, const Buffer& payload, Buffer& memory) {
    const Result<DeltaInfo> applied = apply_delta(spec, payload, memory);
    EXPECT_FALSE(applied.has_value());
    return applied ? Code::cancelled : applied.error().code();
  }

  const DeltaSpec spec_ = spec_of(DType::bf16);
  Buffer base_;
  Buffer target_;
  Buffer payload_;
};

TEST_F(ElementDeltaRefusal, OtherNamesDTypeAndSizeTouchNothing) {
  const Buffer before = base_;
  for (const DeltaSpec& wrong :
       {DeltaSpec{DType::bf16, segment(4), segment(6)}, DeltaSpec{DType::bf16, segment(5), segment(7)},
        DeltaSpec{DType::f16, segment(5), segment(6)}}) {
    EXPECT_EQ(code_of(wrong, payload_, base_), Code::failed_precondition);
    EXPECT_EQ(base_, before);
  }
  for (const std::size_t bytes : {base_.size() - 2, base_.size() - 1, base_.size() + 2, std::size_t{0}}) {
    Buffer other(bytes);
    EXPECT_EQ(code_of(spec_, payload_, other), Code::failed_precondition);
    EXPECT_EQ(other, Buffer(bytes));
  }
}

TEST_F(ElementDeltaRefusal, AppliedTwice) {
  Buffer memory = base_;
  ASSERT_TRUE(apply_delta(spec_, payload_, memory).has_value());
  EXPECT_EQ(code_of(spec_, payload_, memory), Code::corrupt);
}

TEST_F(ElementDeltaRefusal, RevertedFromTheBase) {
  EXPECT_TRUE(is_refused(revert_delta(spec_, payload_, base_), Code::corrupt));
}

/// Any single bit of any changed element is missed by a base that is not the one.
TEST_F(ElementDeltaRefusal, EveryBitOfTheBaseUnderAChange) {
  std::size_t refused = 0;
  for (std::size_t at = 0; at < base_.size(); at += 2) {
    if (std::memcmp(base_.data() + at, target_.data() + at, 2) == 0) continue;
    for (int bit = 0; bit < 16; ++bit) {
      Buffer memory = base_;
      memory[at + bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
      ASSERT_EQ(code_of(spec_, payload_, memory), Code::corrupt) << at << " " << bit;
      ++refused;
    }
  }
  EXPECT_GT(refused, 1000);
}

/// Two elements of the base that changed places, so that any sum of values alone would be the same.
TEST_F(ElementDeltaRefusal, BaseWithTwoElementsSwapped) {
  std::vector<std::size_t> changed;
  for (std::size_t at = 0; at < base_.size(); at += 2) {
    if (std::memcmp(base_.data() + at, target_.data() + at, 2) != 0) changed.push_back(at);
  }
  for (std::size_t i = 1; i < changed.size(); ++i) {
    Buffer memory = base_;
    std::swap_ranges(memory.begin() + changed[i - 1], memory.begin() + changed[i - 1] + 2, memory.begin() + changed[i]);
    if (memory == base_) continue;
    ASSERT_EQ(code_of(spec_, payload_, memory), Code::corrupt);
  }
}

TEST_F(ElementDeltaRefusal, EveryFlippedBitAndEveryTruncation) {
  for (std::size_t bit = 0; bit < 8 * payload_.size(); ++bit) {
    Buffer damaged = payload_;
    damaged[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    Buffer memory = base_;
    ASSERT_EQ(code_of(spec_, damaged, memory), Code::corrupt) << "bit " << bit;
    ASSERT_EQ(memory, base_) << "bit " << bit;
  }
  for (std::size_t bytes = 0; bytes < payload_.size(); ++bytes) {
    const Buffer cut(payload_.begin(), payload_.begin() + static_cast<std::ptrdiff_t>(bytes));
    Buffer memory = base_;
    ASSERT_EQ(code_of(spec_, cut, memory), Code::corrupt) << bytes;
    ASSERT_EQ(memory, base_);
    ASSERT_FALSE(read_delta_info(cut).has_value());
  }
}

Buffer resealed(Buffer payload) {
  const Digest digest = digest_of(Bytes(payload).first(payload.size() - 16));
  std::memcpy(payload.data() + payload.size() - 16, &digest.low, 8);
  std::memcpy(payload.data() + payload.size() - 8, &digest.high, 8);
  return payload;
}

/// The same with a seal that is right, so that what stands behind it is reached: refused, or the right bytes.
TEST_F(ElementDeltaRefusal, EveryFlippedBitUnderARightSeal) {
  std::size_t harmless = 0;
  for (std::size_t bit = 0; bit < 8 * (payload_.size() - 16); ++bit) {
    Buffer damaged = payload_;
    damaged[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    Buffer memory = base_;
    const Result<DeltaInfo> applied = apply_delta(spec_, resealed(damaged), memory);
    if (!applied) continue;
    ASSERT_EQ(memory, target_) << "bit " << bit;
    ++harmless;
  }
  // Some bits of a zstd frame say nothing that its decoder needs (window size, padding).
  EXPECT_LT(harmless, 64);
}

/// Under a right seal, bytes cut out of the middle.
TEST_F(ElementDeltaRefusal, EveryMissingByteUnderARightSeal) {
  for (std::size_t at = 0; at + 16 < payload_.size(); ++at) {
    Buffer damaged = payload_;
    damaged.erase(damaged.begin() + static_cast<std::ptrdiff_t>(at));
    Buffer memory = base_;
    const Result<DeltaInfo> applied = apply_delta(spec_, resealed(damaged), memory);
    ASSERT_FALSE(applied.has_value() && memory != target_) << at;
  }
}

TEST(ElementDelta, LaterFormatsAreUnsupported) {
  const Buffer base(100);
  Buffer payload = encode_delta(spec_of(DType::u8), base, base, kNoLimit).value();
  payload[4] = std::byte{2};
  EXPECT_TRUE(is_refused(read_delta_info(resealed(payload)), Code::unsupported));
}

TEST(ElementDelta, EncodesTheSameWhereverTheMemoryStarts) {
  std::mt19937_64 random(8);
  const Buffer base = random_bytes(50000 * 4, random);
  const Buffer target = changed_from(base, 4, 0.03, random);
  const Buffer payload = encode_delta(spec_of(DType::f32), base, target, kNoLimit).value();
  for (std::size_t shift = 1; shift < 8; ++shift) {
    Buffer moved_base(base.size() + shift);
    Buffer moved_target(base.size() + 8 - shift);
    std::copy(base.begin(), base.end(), moved_base.begin() + static_cast<std::ptrdiff_t>(shift));
    std::copy(target.begin(), target.end(), moved_target.begin() + static_cast<std::ptrdiff_t>(8 - shift));
    const MutableBytes memory = MutableBytes(moved_base).subspan(shift);
    EXPECT_EQ(encode_delta(spec_of(DType::f32), memory, Bytes(moved_target).subspan(8 - shift), kNoLimit), payload);
    ASSERT_TRUE(apply_delta(spec_of(DType::f32), payload, memory).has_value());
    EXPECT_EQ(std::memcmp(memory.data(), target.data(), target.size()), 0);
  }
}

TEST(CountChangedElements, CountsAndEstimates) {
  std::mt19937_64 random(9);
  for (const DType dtype : {DType::i8, DType::bf16, DType::f32, DType::i64}) {
    const std::size_t width = word_bytes_of(dtype);
    const Buffer base = random_bytes(3'000'000 / width * width, random);
    const Buffer target = changed_from(base, width, 0.05, random);
    const std::uint64_t exact = count_by_bytes(base, target, width);
    EXPECT_EQ(count_changed_elements(dtype, base, target), exact);
    EXPECT_EQ(estimate_changed_elements(dtype, base, target, 1 << 22), exact);
    const auto estimate = static_cast<double>(estimate_changed_elements(dtype, base, target, 1 << 19));
    EXPECT_NEAR(estimate, static_cast<double>(exact), 0.1 * static_cast<double>(exact));
    EXPECT_EQ(estimate_changed_elements(dtype, base, base, 1 << 12), 0);
  }
}

}  // namespace
}  // namespace freshet
