// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/model/graph.h"
#include "core/model/tensor.h"

namespace freshet {

/// A model of byte tensors, whose values the test owns.
class ByteModel {
 public:
  explicit ByteModel(std::vector<std::uint64_t> sizes) {
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      specs_.push_back({.name = "layer" + std::to_string(i) + ".w", .dtype = DType::u8, .shape = {sizes[i]}});
      values_.emplace_back(sizes[i], std::byte{0});
    }
    architecture_ = *Architecture::guess_chain(specs_);
  }
  const Architecture& architecture() const { return *architecture_; }
  std::size_t size() const { return values_.size(); }
  std::vector<std::byte>& operator[](std::size_t tensor) { return values_[tensor]; }
  void fill(std::size_t tensor, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    for (std::byte& byte : values_[tensor]) byte = static_cast<std::byte>(random());
  }
  std::vector<TensorView> views() const {
    std::vector<TensorView> views;
    for (std::size_t i = 0; i < values_.size(); ++i) views.push_back({specs_[i], values_[i]});
    return views;
  }

 private:
  std::vector<TensorSpec> specs_;
  std::vector<std::vector<std::byte>> values_;
  std::shared_ptr<const Architecture> architecture_;
};

}  // namespace freshet
