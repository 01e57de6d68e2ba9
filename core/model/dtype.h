// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Element types of tensors. The numeric values stand on the wire and on disk (core/FORMAT.md): append, never renumber.

#include <cstdint>
#include <optional>
#include <string_view>

namespace freshet {

enum class DType : std::uint8_t {
  f64 = 0,
  f32 = 1,
  f16 = 2,
  bf16 = 3,
  f8_e4m3 = 4,
  f8_e5m2 = 5,
  i64 = 6,
  i32 = 7,
  i16 = 8,
  i8 = 9,
  u64 = 10,
  u32 = 11,
  u16 = 12,
  u8 = 13,
  boolean = 14,
  // Carried as bits: Freshet stores, serves and exports them, and computes with none.
  f8_e8m0 = 15,
  f8_e4m3fnuz = 16,
  f8_e5m2fnuz = 17,
  f6_e2m3 = 18,
  f6_e3m2 = 19,
  f4 = 20,
  c64 = 21,
};
inline constexpr std::uint8_t kDTypeCount = 22;

/// Bits of one element. The elements of a tensor lie one behind the other without padding, and fill whole bytes
/// together.
std::uint64_t bits_of(DType dtype);

/// Bytes of the words in which a tensor's bytes are compared and cut: one element, or one byte where an element is
/// smaller.
std::uint64_t word_bytes_of(DType dtype);

/// "f32", "bf16", "f8_e4m3", "bool": the spelling of graph files, the command line and JSON.
std::string_view name_of(DType dtype);
std::optional<DType> dtype_named(std::string_view name);

/// "F32", "BF16", "F8_E4M3", "BOOL": the spelling of safetensors headers.
std::string_view safetensors_name_of(DType dtype);
std::optional<DType> dtype_of_safetensors(std::string_view name);

}  // namespace freshet
