// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What a fuzz target consists of: the entry point that libFuzzer calls, and seeds to start from. A broken property
/// ends the process (FRESHET_CHECK), as a sanitizer's finding does.

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "core/model/tensor.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace freshet::fuzz {

using Input = std::vector<std::byte>;

/// Well-formed inputs, made by the code under test, so that they follow the formats.
std::vector<Input> seeds();

inline Bytes bytes_of_input(const std::uint8_t* data, std::size_t size) { return bytes_of(data, size); }
inline std::string_view text_of_input(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}
inline Input input_of(std::string_view text) {
  const Bytes bytes = bytes_of(text.data(), text.size());
  return Input(bytes.begin(), bytes.end());
}

}  // namespace freshet::fuzz
