// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "core/base/format.h"
#include "core/layout/layout.h"

namespace freshet::benchmarks {

/// What a rank trains: tensors of equal size, of random bytes. Replicated, or of each tensor this rank's rows.
class State {
 public:
  /// `bytes` is what the rank holds. `split_over`: 0 for replicated tensors, else the number of ranks.
  State(std::uint64_t bytes, std::size_t tensors, std::uint32_t split_over = 0) {
    std::mt19937_64 random(1);
    for (std::size_t i = 0; i < tensors; ++i) {
      auto& tensor = bytes_.emplace_back(bytes / tensors / 8 * 8);
      for (std::size_t at = 0; at < tensor.size(); at += 8) {
        const std::uint64_t value = random();
        std::memcpy(tensor.data() + at, &value, 8);
      }
      const std::uint64_t rows = tensor.size() * (split_over == 0 ? 1 : split_over);
      const Layout layout = split_over == 0 ? Layout{} : Layout{.cut = Cut::split, .argument = 0};
      laid_.push_back(
          {.spec = {.name = format("layer{}.kernel", i), .dtype = DType::u8, .shape = {rows}}, .layout = layout});
    }
  }
  /// Something in every half MiB of the first `share` of all tensors changes.
  void write(std::uint64_t step, double share = 1) {
    const auto changed = static_cast<std::size_t>(share * static_cast<double>(bytes_.size()) + 0.5);
    for (std::size_t i = 0; i < changed; ++i) write_layer(i, step);
  }
  void write_layer(std::size_t layer, std::uint64_t step) {
    constexpr std::size_t kApart = std::size_t{1} << 19;
    for (std::size_t at = 0; at + sizeof step <= bytes_[layer].size(); at += kApart) {
      std::memcpy(bytes_[layer].data() + at, &step, sizeof step);
    }
  }
  /// A layer's update: computes with each of its words, about `copies` times as long as it takes to copy them.
  void compute_layer(std::size_t layer, std::uint64_t step, int copies) {
    for (int pass = 0; pass < copies; ++pass) {
      for (std::size_t at = 0; at + sizeof step <= bytes_[layer].size(); at += sizeof step) {
        std::uint64_t word = 0;
        std::memcpy(&word, bytes_[layer].data() + at, sizeof word);
        word = word * 6364136223846793005ULL + step;
        std::memcpy(bytes_[layer].data() + at, &word, sizeof word);
      }
    }
  }
  void copy_to(std::vector<std::byte>& copy) const {
    std::size_t at = 0;
    for (const auto& tensor : bytes_) {
      std::memcpy(copy.data() + at, tensor.data(), tensor.size());
      at += tensor.size();
    }
  }
  std::uint64_t bytes() const { return bytes_.size() * bytes_.front().size(); }
  std::size_t layers() const { return bytes_.size(); }
  Bytes layer(std::size_t index) const { return bytes_[index]; }
  std::vector<Bytes> views() const { return {bytes_.begin(), bytes_.end()}; }
  std::vector<MutableBytes> writable() { return {bytes_.begin(), bytes_.end()}; }
  const std::vector<LaidTensor>& laid() const { return laid_; }

 private:
  std::vector<std::vector<std::byte>> bytes_;
  std::vector<LaidTensor> laid_;
};

}  // namespace freshet::benchmarks
