// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Hash to number, for readers that never wait. One cell of eight bytes holds both a part of the hash and the number,
/// so that a reader sees all of an entry or nothing. A full table is not grown: the writer makes a larger one and
/// leaves the old one as it is to the readers that have it.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

namespace freshet::detail {

/// What a cell says: a number, and a flag beside it.
struct Cell {
  std::uint32_t number = 0;
  bool flag = false;
  bool operator==(const Cell&) const = default;
};

/// find() and prefetch(): any thread. The rest: the writer.
class CellTable {
 public:
  /// REQUIRES: 0 < cells < 2^32.
  explicit CellTable(std::size_t cells) : size_(cells), cells_(new std::atomic<std::uint64_t>[cells]()) {}

  struct Found {
    std::size_t at = 0;
    Cell cell;
  };
  /// Only the upper 31 bits of `hash` count, so entries of other hashes come as well: `is_it(cell)` tells.
  template <typename IsIt>
  std::optional<Found> find(std::uint64_t hash, const IsIt& is_it) const {
    const std::uint64_t print = hash >> kPrintShift;
    for (std::size_t at = home(print);; at = next(at)) {
      const std::uint64_t bits = cells_[at].load(std::memory_order_acquire);
      if (bits == kEmpty) return std::nullopt;
      if (bits >> kPrintShift != print || (bits & kNumberMask) == 0) continue;
      const Cell cell = unpack(bits);
      if (is_it(cell)) return Found{.at = at, .cell = cell};
    }
  }
  void prefetch(std::uint64_t hash) const { __builtin_prefetch(&cells_[home(hash >> kPrintShift)]); }

  /// REQUIRES: !full(), and no entry of this hash is_it.
  void insert(std::uint64_t hash, Cell cell) {
    const std::uint64_t print = hash >> kPrintShift;
    std::size_t at = home(print);
    while (cells_[at].load(std::memory_order_relaxed) != kEmpty) at = next(at);
    cells_[at].store(pack(print, cell), std::memory_order_release);
    ++used_;
    ++live_;
  }
  void replace(std::size_t at, Cell cell) {
    const std::uint64_t print = cells_[at].load(std::memory_order_relaxed) >> kPrintShift;
    cells_[at].store(pack(print, cell), std::memory_order_release);
  }
  void erase(std::size_t at) {
    cells_[at].store(kErased, std::memory_order_release);
    --live_;
  }
  bool full() const { return used_ * 5 >= size_ * 4; }
  /// The same entries, with room for a fifth more.
  std::unique_ptr<CellTable> copy_with_room() const {
    auto copy = std::make_unique<CellTable>(kCellsMin + live_ * 3 / 2);
    for (std::size_t at = 0; at < size_; ++at) {
      const std::uint64_t bits = cells_[at].load(std::memory_order_relaxed);
      if ((bits & kNumberMask) != 0) copy->insert(bits & ~((std::uint64_t{1} << kPrintShift) - 1), unpack(bits));
    }
    return copy;
  }
  std::size_t memory_bytes() const { return sizeof(std::uint64_t) * size_; }

 private:
  // 31 bits of the hash, a flag, and the number plus one; an erased cell has no number, but is not empty.
  static constexpr unsigned kPrintShift = 33;
  static constexpr std::uint64_t kFlag = std::uint64_t{1} << 32;
  static constexpr std::uint64_t kNumberMask = kFlag - 1;
  static constexpr std::size_t kCellsMin = 16;
  static constexpr std::uint64_t kEmpty = 0;
  static constexpr std::uint64_t kErased = kFlag;

  static std::uint64_t pack(std::uint64_t print, Cell cell) {
    return print << kPrintShift | (cell.flag ? kFlag : 0) | (std::uint64_t{cell.number} + 1);
  }
  static Cell unpack(std::uint64_t bits) {
    return {.number = static_cast<std::uint32_t>((bits & kNumberMask) - 1), .flag = (bits & kFlag) != 0};
  }
  std::size_t home(std::uint64_t print) const { return static_cast<std::size_t>((print * size_) >> 31); }
  std::size_t next(std::size_t at) const { return at + 1 == size_ ? 0 : at + 1; }

  const std::size_t size_;
  const std::unique_ptr<std::atomic<std::uint64_t>[]> cells_;
  std::size_t used_ = 0;  ///< Cells that are not empty.
  std::size_t live_ = 0;
};

}  // namespace freshet::detail
