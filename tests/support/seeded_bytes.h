// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Bytes from a seed, and their comparison. Both are for megabytes: they do as little as they can for each byte, which
/// counts without the optimiser and with a sanitizer.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace freshet::test {

inline std::vector<std::byte> seeded_bytes(std::size_t count, std::uint64_t seed) {
  std::vector<std::byte> bytes(count);
  std::uint64_t state = seed * 0x9e3779b97f4a7c15;
  for (std::size_t at = 0; at < count; at += sizeof state) {
    state = state * 6364136223846793005 + 1442695040888963407;
    const std::uint64_t value = state ^ (state >> 29);
    std::memcpy(bytes.data() + at, &value, std::min(sizeof value, count - at));
  }
  return bytes;
}

inline bool same_bytes(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

inline bool all_bytes_are(std::span<const std::byte> bytes, std::byte value) {
  return bytes.empty() || (bytes.front() == value && same_bytes(bytes.first(bytes.size() - 1), bytes.subspan(1)));
}

}  // namespace freshet::test
