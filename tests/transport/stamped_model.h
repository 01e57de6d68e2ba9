// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Models whose bytes say which publish they belong to.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "core/model/tensor.h"
#include "transport/subscriber.h"

namespace freshet::test {

/// `tensors` tensors of `elements` u64 each; every element of tensor t that was last stamped s is s * 1000 + t.
class StampedModel {
 public:
  StampedModel(std::size_t tensors, std::size_t elements, std::string prefix = "layer") : prefix_(std::move(prefix)) {
    for (std::size_t t = 0; t < tensors; ++t) values_.emplace_back(elements);
    stamp_all(0);
  }

  void stamp(std::size_t tensor, std::uint64_t stamp) {
    std::fill(values_[tensor].begin(), values_[tensor].end(), stamp * 1000 + tensor);
  }
  void stamp_all(std::uint64_t to) {
    for (std::size_t t = 0; t < values_.size(); ++t) stamp(t, to);
  }
  std::size_t tensors() const { return values_.size(); }
  std::uint64_t bytes() const { return values_.size() * values_.front().size() * sizeof(std::uint64_t); }

  std::vector<TensorView> views() const {
    std::vector<TensorView> views;
    for (std::size_t t = 0; t < values_.size(); ++t) {
      views.push_back(
          {.spec = {.name = prefix_ + std::to_string(t) + ".weight", .dtype = DType::u64, .shape = {values_[t].size()}},
           .data = bytes_of(values_[t].data(), values_[t].size())});
    }
    return views;
  }

 private:
  std::string prefix_;
  std::vector<std::vector<std::uint64_t>> values_;
};

/// The stamp that every element of the tensor carries, or nothing when they differ: torn.
inline std::optional<std::uint64_t> stamp_of(const Snapshot& snapshot, std::uint32_t tensor) {
  const Bytes bytes = snapshot.bytes(tensor);
  std::uint64_t first = 0;
  for (std::size_t at = 0; at + 8 <= bytes.size(); at += 8) {
    std::uint64_t value = 0;
    std::memcpy(&value, bytes.data() + at, 8);
    if (at == 0) first = value;
    if (value != first) return std::nullopt;
  }
  if (first % 1000 != tensor) return std::nullopt;
  return first / 1000;
}

}  // namespace freshet::test
