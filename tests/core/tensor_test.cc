// SPDX-License-Identifier: Apache-2.0
#include "core/model/tensor.h"

#include <gtest/gtest.h>

namespace freshet {
namespace {

TEST(ByteSize, CountsElementsTimesDtype) {
  EXPECT_EQ(byte_size(DType::f32, Shape{3, 5}), 60u);
  EXPECT_EQ(byte_size(DType::bf16, Shape{}), 2u);
  EXPECT_EQ(byte_size(DType::f64, Shape{7, 0}), 0u);
}

TEST(ByteSize, RefusesWhatOverflows) {
  EXPECT_EQ(byte_size(DType::f32, Shape{std::uint64_t{1} << 62}), std::nullopt);
  EXPECT_EQ(byte_size(DType::u8, Shape{std::uint64_t{1} << 32, std::uint64_t{1} << 32}), std::nullopt);
  EXPECT_EQ(byte_size(DType::u8, Shape{0, std::uint64_t{1} << 40, std::uint64_t{1} << 40}), std::nullopt);
}

TEST(ByteSize, OfLessThanAByteFillsWholeBytes) {
  EXPECT_EQ(byte_size(DType::f4, Shape{3, 2}), 3u);
  EXPECT_EQ(byte_size(DType::f6_e2m3, Shape{4, 5}), 15u);
  EXPECT_EQ(byte_size(DType::f6_e3m2, Shape{0, 3}), 0u);
  EXPECT_EQ(byte_size(DType::c64, Shape{3}), 24u);
  EXPECT_EQ(byte_size(DType::f4, Shape{3}), std::nullopt);
  EXPECT_EQ(byte_size(DType::f6_e2m3, Shape{}), std::nullopt);
  EXPECT_EQ(byte_size(DType::f4, Shape{(std::uint64_t{1} << 63) - 2, 2}), (std::uint64_t{1} << 63) - 2);
  EXPECT_EQ(byte_size(DType::f4, Shape{~std::uint64_t{0}, 2}), std::nullopt);
  EXPECT_EQ(byte_size(DType::c64, Shape{std::uint64_t{1} << 60}), std::nullopt);
}

TEST(DType, NamesAreFoundAgain) {
  for (std::uint8_t i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(dtype_named(name_of(dtype)), dtype);
    EXPECT_EQ(dtype_of_safetensors(safetensors_name_of(dtype)), dtype);
  }
  EXPECT_EQ(dtype_named("f33"), std::nullopt);
}

TEST(TensorSpec, RefusesBadNamesAndSlices) {
  EXPECT_TRUE(TensorSpec{.name = ""}.check());
  EXPECT_TRUE(TensorSpec{.name = std::string(kTensorNameBytesMax, 'x')}.check());
  EXPECT_FALSE(TensorSpec{.name = "a\nb"}.check());
  EXPECT_FALSE(TensorSpec{.name = std::string(kTensorNameBytesMax + 1, 'x')}.check());
  EXPECT_TRUE((TensorSpec{.name = "w", .shape = {4}, .slice = Slice{{8}, {4}, 2}}.check()));
  EXPECT_FALSE((TensorSpec{.name = "w", .shape = {4}, .slice = Slice{{8}, {5}, 2}}.check()));
  EXPECT_FALSE((TensorSpec{.name = "w", .shape = {4}, .slice = Slice{{8}, {~std::uint64_t{0}}, 2}}.check()));
  const auto of_f4 = [](Shape shape, Shape global, Shape offset) {
    return TensorSpec{.name = "w",
                      .dtype = DType::f4,
                      .shape = std::move(shape),
                      .slice = Slice{std::move(global), std::move(offset), 2}}
        .check()
        .has_value();
  };
  EXPECT_TRUE(of_f4({1, 4}, {3, 8}, {2, 4}));
  EXPECT_FALSE(of_f4({2, 3}, {2, 8}, {0, 0}));
  EXPECT_FALSE(of_f4({2, 4}, {2, 8}, {0, 3}));
  EXPECT_FALSE(of_f4({1}, {2}, {0}));
  EXPECT_TRUE(of_f4({2, 3}, {2, 3}, {0, 0})) << "all of it";
}

}  // namespace
}  // namespace freshet
