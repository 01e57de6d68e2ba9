// SPDX-License-Identifier: Apache-2.0
#include "core/delta/choose_encoding.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "core/delta/element_delta.h"

namespace freshet {
namespace {

constexpr double kThinLink = 125e6;
constexpr double kMemory = 20e9;

EncodingQuestion question(double density, double link) {
  const std::uint64_t elements = std::uint64_t{1} << 26;
  return {.dtype = DType::bf16,
          .bytes = 2 * elements,
          .changed_elements = static_cast<std::uint64_t>(density * static_cast<double>(elements)),
          .link_bytes_per_second = link};
}

TEST(ChooseEncoding, NothingChangedIsSkipped) {
  EXPECT_EQ(choose_encoding(question(0, kThinLink)), Encoding::skip);
  EXPECT_EQ(choose_encoding({.dtype = DType::f32}), Encoding::skip);
}

TEST(ChooseEncoding, ThinLinksTakeDeltasAndMemoryTakesBytes) {
  EXPECT_EQ(choose_encoding(question(0.016, kThinLink)), Encoding::delta);
  EXPECT_EQ(choose_encoding(question(0.35, kThinLink)), Encoding::delta);
  EXPECT_EQ(choose_encoding(question(0.35, kMemory)), Encoding::dense);
  EXPECT_EQ(choose_encoding(question(0.016, 0)), Encoding::delta);
}

TEST(ChooseEncoding, WhatIsNoShorterIsDense) {
  EncodingQuestion all = question(1.0, 1.0);
  all.dtype = DType::u8;
  all.changed_elements = all.bytes;
  all.bytes_per_change = 1.0;
  EXPECT_EQ(choose_encoding(all), Encoding::dense);
  all.bytes_per_change = 0.5;
  EXPECT_EQ(choose_encoding(all), Encoding::delta);
}

/// A denser change never turns dense into delta, a faster link never dense into delta.
TEST(ChooseEncoding, IsMonotonous) {
  for (double link = 1e6; link < 1e11; link *= 2) {
    bool was_dense = false;
    for (double density = 1e-5; density <= 1.0; density *= 1.5) {
      const bool is_dense = choose_encoding(question(density, link)) == Encoding::dense;
      EXPECT_FALSE(was_dense && !is_dense) << link << " " << density;
      was_dense = is_dense;
    }
  }
}

TEST(ChooseEncoding, TheLongestDeltaIsDoneWhenThePayloadIs) {
  // 1 MB at 100 MB/s takes 10 ms and 0.1 ms to be digested. A delta of 10,000 changes takes 0.1 ms to be found, 0.07 to
  // be encoded and 0.08 to be applied, so it has 9.85 ms left on the link.
  EncodingQuestion asked{
      .dtype = DType::bf16, .bytes = 1'000'000, .changed_elements = 10'000, .link_bytes_per_second = 100e6};
  EXPECT_EQ(longest_delta(asked), 900'000u) << "a tenth is to be saved";
  asked.costs.scan_ns_per_byte = 4.1;
  EXPECT_EQ(longest_delta(asked), 585'000u);
  asked.costs.scan_ns_per_byte = 20;
  EXPECT_EQ(longest_delta(asked), 0u);
  EXPECT_EQ(choose_encoding(asked), Encoding::dense);
}

TEST(ChooseEncoding, ASampleFindsTheDensityOfALargeTensor) {
  const std::size_t elements = std::size_t{1} << 22;
  std::mt19937 random(7);
  const std::vector<std::byte> base(2 * elements, std::byte{60});
  std::vector<std::byte> target = base;
  std::bernoulli_distribution is_changed(0.02);
  for (std::size_t i = 0; i < elements; ++i) {
    if (is_changed(random)) target[2 * i] = std::byte{61};
  }
  const EncodingQuestion asked = sampled_question(DType::bf16, base, target, 1e9);
  EXPECT_EQ(asked.bytes, base.size());
  EXPECT_NEAR(static_cast<double>(asked.changed_elements) / static_cast<double>(elements), 0.02, 0.005);
  EXPECT_EQ(sampled_question(DType::bf16, base, base, 1e9).changed_elements, 1u) << "a sample is not certain";
}

TEST(ChooseEncoding, OfASmallTensorAnEighthIsRead) {
  const std::vector<std::byte> base(4096, std::byte{60});
  std::vector<std::byte> target(4096, std::byte{61});
  EXPECT_EQ(sampled_question(DType::bf16, base, target, 1e9).changed_elements, 2048u);
  // Two samples of 256 bytes lie a quarter and three quarters of the way.
  target = base;
  std::fill_n(target.begin() + 1024, 256, std::byte{61});
  std::fill_n(target.begin() + 2048, 512, std::byte{61});
  EXPECT_EQ(sampled_question(DType::bf16, base, target, 1e9).changed_elements, 1024u);
}

TEST(ChooseEncoding, ExpectsAboutWhatTheCodecNeeds) {
  std::mt19937 random(1);
  const std::size_t elements = 1 << 20;
  const std::vector<std::byte> base(2 * elements, std::byte{60});
  for (const double density : {0.001, 0.01, 0.1, 0.35}) {
    std::vector<std::byte> target = base;
    std::bernoulli_distribution is_changed(density);
    for (std::size_t i = 0; i < elements; ++i) {
      if (is_changed(random)) target[2 * i] = std::byte{static_cast<unsigned char>(random() % 2 == 0 ? 61 : 59)};
    }
    const DeltaSpec spec{.dtype = DType::bf16, .base = {}, .target = {}};
    const double bytes = static_cast<double>(encode_delta(spec, base, target, ~std::uint64_t{0})->size());
    const EncodingQuestion asked{.dtype = DType::bf16,
                                 .bytes = 2 * elements,
                                 .changed_elements = count_changed_elements(DType::bf16, base, target)};
    EXPECT_NEAR(expected_delta_bytes(asked) / bytes, 1.0, 0.3) << density;
  }
}

}  // namespace
}  // namespace freshet
