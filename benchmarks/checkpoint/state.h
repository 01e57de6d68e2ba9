// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "core/base/format.h"
#include "core/layout/layout.h"

namespace freshet::benchmarks {

/// What a rank trains: replicated tensors of equal size, of random bytes.
class State {
 public:
  State(std::uint64_t bytes, std::size_t tensors) {
    std::mt19937_64 random(1);
    for (std::size_t i = 0; i < tensors; ++i) {
      auto& tensor = bytes_.emplace_back(bytes / tensors / 8 * 8);
      for (std::size_t at = 0; at < tensor.size(); at += 8) {
        const std::uint64_t value = random();
        std::memcpy(tensor.data() + at, &value, 8);
      }
      laid_.push_back(
          {.spec = {.name = format("layer{}.kernel", i), .dtype = DType::u8, .shape = {tensor.size()}}, .layout = {}});
    }
  }
  /// Something in every half MiB of the first `share` of all tensors changes.
  void write(std::uint64_t step, double share = 1) {
    const auto changed = static_cast<std::size_t>(share * static_cast<double>(bytes_.size()) + 0.5);
    constexpr std::size_t kApart = std::size_t{1} << 19;
    for (std::size_t i = 0; i < changed; ++i) {
      for (std::size_t at = 0; at + sizeof step <= bytes_[i].size(); at += kApart) {
        std::memcpy(bytes_[i].data() + at, &step, sizeof step);
      }
    }
  }
  std::uint64_t bytes() const { return bytes_.size() * bytes_.front().size(); }
  std::vector<Bytes> views() const { return {bytes_.begin(), bytes_.end()}; }
  std::vector<MutableBytes> writable() { return {bytes_.begin(), bytes_.end()}; }
  const std::vector<LaidTensor>& laid() const { return laid_; }

 private:
  std::vector<std::vector<std::byte>> bytes_;
  std::vector<LaidTensor> laid_;
};

}  // namespace freshet::benchmarks
