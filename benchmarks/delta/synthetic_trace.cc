// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numbers>

#include "benchmarks/delta/trace.h"

namespace freshet::benchmarks {
namespace {

constexpr float kWeightDeviation = 0.02f;

/// SplitMix64: a number for each (seed, index), so that nothing depends on a library's generators.
std::uint64_t random_of(std::uint64_t seed, std::uint64_t index) {
  std::uint64_t x = seed + index * 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

/// Two independent normal numbers (Box and Muller).
void normal_pair(std::uint64_t bits, float& a, float& b) {
  const float u = (static_cast<float>(bits >> 40) + 0.5f) * 0x1p-24f;
  const float v = static_cast<float>(bits & 0xffffff) * 0x1p-24f;
  const float radius = std::sqrt(-2.0f * std::log(u));
  a = radius * std::cos(2.0f * std::numbers::pi_v<float> * v);
  b = radius * std::sin(2.0f * std::numbers::pi_v<float> * v);
}

}  // namespace

std::uint16_t bf16_of(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

SyntheticTrace::SyntheticTrace(std::size_t elements, std::uint64_t seed) : master_(elements), direction_(elements) {
  for (std::size_t i = 0; i < elements; ++i) {
    normal_pair(random_of(seed, i), master_[i], direction_[i]);
    master_[i] *= kWeightDeviation;
  }
}

double SyntheticTrace::rate_for(double density) const {
  const std::size_t sample = std::min<std::size_t>(master_.size(), std::size_t{1} << 20);
  double low = 1e-12;
  double high = 1;
  for (int i = 0; i < 60; ++i) {
    const double rate = std::sqrt(low * high);
    std::size_t changed = 0;
    for (std::size_t k = 0; k < sample; ++k) {
      changed += bf16_of(master_[k]) != bf16_of(master_[k] - static_cast<float>(rate) * direction_[k]);
    }
    (static_cast<double>(changed) < density * static_cast<double>(sample) ? low : high) = rate;
  }
  return low;
}

TensorPair SyntheticTrace::pair(double density) const {
  const auto rate = static_cast<float>(rate_for(density));
  TensorPair pair{.dtype = DType::bf16,
                  .base = std::vector<std::byte>(2 * master_.size()),
                  .target = std::vector<std::byte>(2 * master_.size())};
  for (std::size_t i = 0; i < master_.size(); ++i) {
    const std::uint16_t before = bf16_of(master_[i]);
    const std::uint16_t after = bf16_of(master_[i] - rate * direction_[i]);
    std::memcpy(pair.base.data() + 2 * i, &before, 2);
    std::memcpy(pair.target.data() + 2 * i, &after, 2);
  }
  return pair;
}

}  // namespace freshet::benchmarks
