// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Integers in bytes, the least significant first. For core's own source files.

#include <cstddef>
#include <vector>

namespace freshet {

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
