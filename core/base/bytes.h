// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Bytes, and integers in them, the least significant byte first.

#include <cstddef>
#include <span>
#include <vector>

namespace freshet {

using Bytes = std::span<const std::byte>;
using MutableBytes = std::span<std::byte>;

/// Bytes of a contiguous range of trivially copyable values.
template <typename T>
Bytes bytes_of(const T* values, std::size_t count) {
  return Bytes(reinterpret_cast<const std::byte*>(values), count * sizeof(T));
}

template <typename Integer>
void store_little_endian(std::byte* to, Integer value) {
  for (std::size_t i = 0; i < sizeof(Integer); ++i) to[i] = static_cast<std::byte>((value >> (8 * i)) & 0xff);
}

template <typename Integer>
void append_little_endian(std::vector<std::byte>& out, Integer value) {
  out.resize(out.size() + sizeof(Integer));
  store_little_endian(out.data() + out.size() - sizeof(Integer), value);
}

template <typename Integer>
Integer load_little_endian(const std::byte* from) {
  Integer value = 0;
  for (std::size_t i = 0; i < sizeof(Integer); ++i) {
    value = static_cast<Integer>(value | static_cast<Integer>(from[i]) << (8 * i));
  }
  return value;
}

}  // namespace freshet
