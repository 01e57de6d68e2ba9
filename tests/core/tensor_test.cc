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

TEST(DType, NamesAreFoundAgain) {
  for (std::uint8_t i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(dtype_named(name_of(dtype)), dtype);
    EXPECT_EQ(dtype_of_safetensors(safetensors_name_of(dtype)), dtype);
  }
  EXPECT_EQ(dtype_named("f33"), std::nullopt);
}

TEST(TensorSpec, RefusesBadNamesAndSlices) {
  EXPECT_FALSE(TensorSpec{.name = ""}.check());
  EXPECT_FALSE(TensorSpec{.name = "a\nb"}.check());
  EXPECT_FALSE(TensorSpec{.name = std::string(kTensorNameBytesMax + 1, 'x')}.check());
  EXPECT_TRUE((TensorSpec{.name = "w", .shape = {4}, .slice = Slice{{8}, {4}, 2}}.check()));
  EXPECT_FALSE((TensorSpec{.name = "w", .shape = {4}, .slice = Slice{{8}, {5}, 2}}.check()));
  EXPECT_FALSE((TensorSpec{.name = "w", .shape = {4}, .slice = Slice{{8}, {~std::uint64_t{0}}, 2}}.check()));
}

}  // namespace
}  // namespace freshet
