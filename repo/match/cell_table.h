// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Hash to number, in eight bytes an entry. The meaning of a number is kept elsewhere.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace freshet::detail {

/// The content of a cell: a number, and a flag beside it.
struct Cell {
  std::uint32_t number = 0;
  bool flag = false;
  bool operator==(const Cell&) const = default;
};

class CellTable {
 public:
  struct Found {
    std::size_t at = 0;
    Cell cell;
  };
  /// Only the upper 31 bits of `hash` count, so entries of other hashes come as well: `is_it(cell)` tells.
  template <typename IsIt>
  std::optional<Found> find(std::uint64_t hash, const IsIt& is_it) const {
    const std::uint64_t print = hash >> kPrintShift;
    for (std::size_t at = home(print);; at = next(at)) {
      const std::uint64_t bits = cells_[at];
      if (bits == kEmpty) return std::nullopt;
      if (bits >> kPrintShift != print || (bits & kNumberMask) == 0) continue;
      const Cell cell = unpack(bits);
      if (is_it(cell)) return Found{.at = at, .cell = cell};
    }
  }
  void prefetch(std::uint64_t hash) const { __builtin_prefetch(&cells_[home(hash >> kPrintShift)]); }

  /// REQUIRES: no entry of this hash is_it.
  void insert(std::uint64_t hash, Cell cell) {
    if (used_ * 5 >= cells_.size() * 4) grow();
    put(pack(hash >> kPrintShift, cell));
    ++live_;
  }
  void replace(std::size_t at, Cell cell) { cells_[at] = pack(cells_[at] >> kPrintShift, cell); }
  void erase(std::size_t at) {
    cells_[at] = kErased;
    --live_;
  }
  std::size_t memory_bytes() const { return sizeof(std::uint64_t) * cells_.size(); }

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
  std::size_t home(std::uint64_t print) const { return static_cast<std::size_t>((print * cells_.size()) >> 31); }
  std::size_t next(std::size_t at) const { return at + 1 == cells_.size() ? 0 : at + 1; }

  void put(std::uint64_t bits) {
    std::size_t at = home(bits >> kPrintShift);
    while (cells_[at] != kEmpty) at = next(at);
    cells_[at] = bits;
    ++used_;
  }
  /// Without the erased ones, and with room for a fifth more.
  void grow() {
    std::vector<std::uint64_t> before(kCellsMin + live_ * 3 / 2, kEmpty);
    before.swap(cells_);
    used_ = 0;
    for (const std::uint64_t bits : before) {
      if ((bits & kNumberMask) != 0) put(bits);
    }
  }

  std::vector<std::uint64_t> cells_ = std::vector<std::uint64_t>(kCellsMin, kEmpty);
  std::size_t used_ = 0;  ///< Cells that are not empty.
  std::size_t live_ = 0;
};

}  // namespace freshet::detail
