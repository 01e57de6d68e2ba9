// SPDX-License-Identifier: Apache-2.0
#include "core/model/dtype.h"

#include <algorithm>
#include <array>

#include "core/base/check.h"

namespace freshet {
namespace {

struct Row {
  DType dtype;
  std::uint8_t bits;
  std::string_view name;
  std::string_view safetensors;
};

constexpr std::array<Row, kDTypeCount> kRows = {{
    {DType::f64, 64, "f64", "F64"},
    {DType::f32, 32, "f32", "F32"},
    {DType::f16, 16, "f16", "F16"},
    {DType::bf16, 16, "bf16", "BF16"},
    {DType::f8_e4m3, 8, "f8_e4m3", "F8_E4M3"},
    {DType::f8_e5m2, 8, "f8_e5m2", "F8_E5M2"},
    {DType::i64, 64, "i64", "I64"},
    {DType::i32, 32, "i32", "I32"},
    {DType::i16, 16, "i16", "I16"},
    {DType::i8, 8, "i8", "I8"},
    {DType::u64, 64, "u64", "U64"},
    {DType::u32, 32, "u32", "U32"},
    {DType::u16, 16, "u16", "U16"},
    {DType::u8, 8, "u8", "U8"},
    {DType::boolean, 8, "bool", "BOOL"},
    {DType::f8_e8m0, 8, "f8_e8m0", "F8_E8M0"},
    {DType::f8_e4m3fnuz, 8, "f8_e4m3fnuz", "F8_E4M3FNUZ"},
    {DType::f8_e5m2fnuz, 8, "f8_e5m2fnuz", "F8_E5M2FNUZ"},
    {DType::f6_e2m3, 6, "f6_e2m3", "F6_E2M3"},
    {DType::f6_e3m2, 6, "f6_e3m2", "F6_E3M2"},
    {DType::f4, 4, "f4", "F4"},
    {DType::c64, 64, "c64", "C64"},
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

std::uint64_t bits_of(DType dtype) { return row_of(dtype).bits; }
std::uint64_t word_bytes_of(DType dtype) { return std::max<std::uint64_t>(1, bits_of(dtype) / 8); }
std::string_view name_of(DType dtype) { return row_of(dtype).name; }
std::optional<DType> dtype_named(std::string_view name) { return find(name, &Row::name); }
std::string_view safetensors_name_of(DType dtype) { return row_of(dtype).safetensors; }
std::optional<DType> dtype_of_safetensors(std::string_view name) { return find(name, &Row::safetensors); }

}  // namespace freshet
