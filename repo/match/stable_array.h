// SPDX-License-Identifier: Apache-2.0
#pragma once

/// An array that grows without moving what is in it: readers go through elements that they learned of, while the writer
/// adds others.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

#include "core/base/check.h"

namespace freshet::detail {

/// operator[]: any thread that learned of the index from the writer through a release and acquire. The rest: the
/// writer. Elements are made when their index is first given, and live as long as the array; one that was given back is
/// given again as it is. For that an element has a number that next_free() gives, the array's while it is not in use.
template <typename T>
class StableArray {
 public:
  // Memory that the system gives as zeros costs nothing until it is used.
  StableArray() : chunks_(static_cast<T**>(std::calloc(kChunks, sizeof(T*)))) { FRESHET_CHECK(chunks_ != nullptr); }
  ~StableArray() {
    for (std::uint32_t i = 0; i < size_; ++i) (*this)[i].~T();
    for (std::size_t i = 0; i * kChunk < size_; ++i) ::operator delete(chunks_[i]);
    std::free(chunks_);
  }
  StableArray(const StableArray&) = delete;
  StableArray& operator=(const StableArray&) = delete;

  T& operator[](std::uint32_t index) { return chunks_[index / kChunk][index % kChunk]; }
  const T& operator[](std::uint32_t index) const { return chunks_[index / kChunk][index % kChunk]; }

  /// REQUIRES: fewer than capacity() are in use.
  std::uint32_t take() {
    if constexpr (kGivenBack) {
      if (free_ != kNone) {
        const std::uint32_t index = free_;
        free_ = (*this)[index].next_free();
        --free_count_;
        return index;
      }
    }
    if (size_ % kChunk == 0) {
      FRESHET_CHECK(size_ < capacity());
      // Whoever learns of an index in it does so after this: its release is this one's, too.
      chunks_[size_ / kChunk] = static_cast<T*>(::operator new(kChunk * sizeof(T)));
    }
    new (&(*this)[size_]) T();
    return size_++;
  }
  /// REQUIRES: no reader can reach it.
  void give_back(std::uint32_t index) {
    (*this)[index].next_free() = free_;
    free_ = index;
    ++free_count_;
  }

  static constexpr std::size_t capacity() { return kChunks * kChunk; }
  std::size_t in_use() const { return size_ - free_count_; }
  /// Of elements that were ever in use; room that never was is no memory yet.
  std::size_t memory_bytes() const { return size_ * sizeof(T) + (size_ + kChunk - 1) / kChunk * sizeof(T*); }

 private:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};
  static constexpr bool kGivenBack = requires(T & element) { element.next_free(); };
  static constexpr std::size_t kChunk = 1 << 10;
  static constexpr std::size_t kChunks = 1 << 16;

  T** const chunks_;
  std::uint32_t size_ = 0;
  std::uint32_t free_ = kNone;
  std::size_t free_count_ = 0;
};

}  // namespace freshet::detail
