// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A set of numbers that stand for things kept elsewhere, by a hash of those things. Four bytes a number.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace freshet::detail {

/// `HashOf(number)` is the hash of the thing that a number in the set stands for; it must not change while it is in it.
/// One thread at a time.
template <typename HashOf>
class FlatSet {
 public:
  explicit FlatSet(HashOf hash_of) : hash_of_(std::move(hash_of)), cells_(kCellsMin, kEmpty) {}

  /// The number of that hash for which `is_it(number)`.
  template <typename IsIt>
  std::optional<std::uint32_t> find(std::uint64_t hash, const IsIt& is_it) const {
    for (std::size_t at = home(hash); cells_[at] != kEmpty; at = next(at)) {
      if (is_it(cells_[at])) return cells_[at];
    }
    return std::nullopt;
  }

  /// REQUIRES: it is not in it.
  void insert(std::uint32_t number) {
    if ((size_ + 1) * 5 > cells_.size() * 4) grow();
    put(number);
    ++size_;
  }

  /// REQUIRES: it is in it, and its hash can still be told.
  void erase(std::uint32_t number) {
    std::size_t hole = home(hash_of_(number));
    while (cells_[hole] != number) hole = next(hole);
    // Those behind move up, so that no search stops early at the hole.
    for (std::size_t at = next(hole); cells_[at] != kEmpty; at = next(at)) {
      if (distance(home(hash_of_(cells_[at])), at) < distance(hole, at)) continue;
      cells_[hole] = cells_[at];
      hole = at;
    }
    cells_[hole] = kEmpty;
    --size_;
  }

  std::size_t memory_bytes() const { return cells_.size() * sizeof(std::uint32_t); }

 private:
  static constexpr std::uint32_t kEmpty = ~std::uint32_t{0};
  static constexpr std::size_t kCellsMin = 16;

  std::size_t home(std::uint64_t hash) const {
    return static_cast<std::size_t>((((hash * 0x9E3779B97F4A7C15ULL) >> 32) * cells_.size()) >> 32);
  }
  std::size_t next(std::size_t at) const { return at + 1 == cells_.size() ? 0 : at + 1; }
  /// How many steps from `from` to `to`.
  std::size_t distance(std::size_t from, std::size_t to) const {
    return to >= from ? to - from : to + cells_.size() - from;
  }

  void put(std::uint32_t number) {
    std::size_t at = home(hash_of_(number));
    while (cells_[at] != kEmpty) at = next(at);
    cells_[at] = number;
  }

  void grow() {
    // A fifth more: room that is not used costs more memory than growing often costs time.
    std::vector<std::uint32_t> before(cells_.size() + cells_.size() / 5 + 1, kEmpty);
    before.swap(cells_);
    for (const std::uint32_t number : before) {
      if (number != kEmpty) put(number);
    }
  }

  const HashOf hash_of_;
  std::vector<std::uint32_t> cells_;
  std::size_t size_ = 0;
};

}  // namespace freshet::detail
