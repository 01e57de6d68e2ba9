// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace freshet::detail {

/// Things by number, the first one 0. They never move. A number that was given back is given again, with a new thing.
template <typename T>
class Numbered {
 public:
  T& operator[](std::uint32_t number) { return chunks_[number / kChunk][number % kChunk]; }
  const T& operator[](std::uint32_t number) const { return chunks_[number / kChunk][number % kChunk]; }

  std::uint32_t take() {
    if (!free_.empty()) {
      const std::uint32_t number = free_.back();
      free_.pop_back();
      return number;
    }
    if (size_ % kChunk == 0) chunks_.push_back(std::make_unique<T[]>(kChunk));
    return size_++;
  }
  void give_back(std::uint32_t number) {
    std::destroy_at(&(*this)[number]);
    std::construct_at(&(*this)[number]);
    free_.push_back(number);
  }

  /// Greater than every number that was ever taken.
  std::uint32_t size() const { return size_; }
  std::size_t in_use() const { return size_ - free_.size(); }
  std::size_t memory_bytes() const {
    return size_ * sizeof(T) + chunks_.size() * sizeof(T*) + free_.capacity() * sizeof(std::uint32_t);
  }

 private:
  static constexpr std::size_t kChunk = 1 << 10;

  std::vector<std::unique_ptr<T[]>> chunks_;
  std::vector<std::uint32_t> free_;
  std::uint32_t size_ = 0;
};

}  // namespace freshet::detail
