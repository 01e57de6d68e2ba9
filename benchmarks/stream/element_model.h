// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The model whose updates are measured: bf16 tensors with values as weights have them, and training steps that change
/// a share of their elements a little, or all of them. The same for the same seeds on every machine.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/base/digest.h"
#include "core/model/tensor.h"

namespace freshet::benchmarks {

/// One thread at a time.
class ElementModel {
 public:
  /// `tensors` of equal size, `bytes` in all (rounded down to pages); all memory touched.
  static Result<std::unique_ptr<ElementModel>> create(std::uint64_t bytes, std::size_t tensors);
  ~ElementModel();
  ElementModel(const ElementModel&) = delete;
  ElementModel& operator=(const ElementModel&) = delete;

  std::uint64_t bytes() const { return bytes_; }
  std::span<const TensorView> views() const { return views_; }
  MutableBytes memory() { return {memory_, bytes_}; }

  /// Changes that share of the elements, at random places over all tensors, by few units in the last place: what an
  /// optimizer's step leaves of itself in bf16. Returns how many.
  std::uint64_t step(double share, std::uint64_t seed);
  /// Changes every element.
  void rewrite(std::uint64_t seed);

  /// Of all tensors' bytes, in order.
  Digest digest() const;

 private:
  ElementModel() = default;
  std::byte* memory_ = nullptr;
  std::uint64_t bytes_ = 0;
  std::vector<TensorView> views_;
};

/// The digest that a model with these tensors has.
Digest digest_of_tensors(std::span<const Bytes> tensors);

}  // namespace freshet::benchmarks
