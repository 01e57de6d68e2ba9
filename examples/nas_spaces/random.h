// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Random numbers that are the same everywhere: the standard library's distributions differ between implementations.

#include <cstdint>

namespace freshet::nas {

/// Mixes 64 bits so that every output bit depends on every input bit (the finalizer of SplitMix64).
constexpr std::uint64_t mixed(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ULL;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBULL;
  return value ^ (value >> 31);
}

/// A number in [0, 1) made of the upper bits.
constexpr double unit_interval(std::uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1.0p-53; }

/// SplitMix64. A value; one thread at a time.
class Random {
 public:
  explicit constexpr Random(std::uint64_t seed) : state_(seed) {}

  constexpr std::uint64_t next() { return mixed(state_ += 0x9E3779B97F4A7C15ULL); }
  /// Below `limit`, evenly to within 2^-32. REQUIRES: 0 < limit.
  constexpr std::uint32_t below(std::uint32_t limit) {
    return static_cast<std::uint32_t>(((next() >> 32) * limit) >> 32);
  }
  constexpr double unit() { return unit_interval(next()); }

 private:
  std::uint64_t state_;
};

}  // namespace freshet::nas
