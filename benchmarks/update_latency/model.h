// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The model whose updates are measured: tensors in one piece of shared memory, so that a peer's writer process sees
/// the very bytes that the trainer wrote, without a copy.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/model/tensor.h"

namespace freshet::benchmarks {

class Model {
 public:
  /// About `bytes` in `tensors` tensors of different sizes, each a multiple of a page.
  static Result<std::unique_ptr<Model>> create(std::uint64_t bytes, std::size_t tensors);
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  std::size_t size() const { return views_.size(); }
  std::uint64_t bytes() const { return bytes_; }
  std::span<const TensorView> views() const { return views_; }
  Bytes tensor(std::uint32_t index) const { return views_[index].data; }
  std::uint64_t bytes_of(std::span<const std::uint32_t> tensors) const;
  int descriptor() const { return descriptor_; }
  /// "BYTES,BYTES,…": how a child process learns the tensors' sizes.
  std::string sizes() const;

  /// About a quarter of the bytes; all tensors.
  std::vector<std::uint32_t> quarter() const;
  std::vector<std::uint32_t> all() const;

  /// A training step: writes `stamp` into every page of these tensors.
  void step(std::span<const std::uint32_t> tensors, std::uint64_t stamp);

 private:
  Model() = default;
  int descriptor_ = -1;
  std::byte* memory_ = nullptr;
  std::uint64_t bytes_ = 0;
  std::vector<std::uint64_t> offsets_;
  std::vector<TensorView> views_;
};

/// The sizes that Model::sizes() wrote.
std::vector<std::uint64_t> parse_sizes(const std::string& text);

}  // namespace freshet::benchmarks
