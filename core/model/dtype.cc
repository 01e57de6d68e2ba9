// SPDX-License-Identifier: Apache-2.0
#include "core/model/dtype.h"

#include <array>

#include "core/base/check.h"

namespace freshet {
namespace {

struct Row {
  DType dtype;
  std::uint8_t bytes;
  std::string_view name;
  std::string_view safetensors;
};

constexpr std::array<Row, kDTypeCount> kRows = {{
    {DType::f64, 8, "f64", "F64"},
    {DType::f32, 4, "f32", "F32"},
    {DType::f16, 2, "f16", "F16"},
    {DType::bf16, 2, "bf16", "BF16"},
    {DType::f8_e4m3, 1, "f8_e4m3", "F8_E4M3"},
    {DType::f8_e5m2, 1, "f8_e5m2", "F8_E5M2"},
    {DType::i64, 8, "i64", "I64"},
    {DType::i32, 4, "i32", "I32"},
    {DType::i16, 2, "i16", "I16"},
    {DType::i8, 1, "i8", "I8"},
    {DType::u64, 8, "u64", "U64"},
    {DType::u32, 4, "u32", "U32"},
    {DType::u16, 2, "u16", "U16"},
    {DType::u8, 1, "u8", "U8"},
    {DType::boolean, 1, "bool", "BOOL"},
}};

const Row& row_of(DType dtype) {
  const auto index = static_cast<std::size_t>(dtype);
  FRESHET_CHECK(index < kRows.size() && kRows[index].dtype == dtype);
  return kRows[index];
}

std::optional<DType> find(std::string_view name, std::string_view Row::*column) {
  for (const Row& row : kRows) {
    if (row.*column == name) return row.dtype;
  }
  return std::nullopt;
}

}  // namespace

std::uint64_t size_of(DType dtype) { return row_of(dtype).bytes; }
std::string_view name_of(DType dtype) { return row_of(dtype).name; }
std::optional<DType> dtype_named(std::string_view name) { return find(name, &Row::name); }
std::string_view safetensors_name_of(DType dtype) { return row_of(dtype).safetensors; }
std::optional<DType> dtype_of_safetensors(std::string_view name) { return find(name, &Row::safetensors); }

}  // namespace freshet
