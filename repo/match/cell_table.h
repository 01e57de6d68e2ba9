#pragma once

/// Hash to number, for readers that never wait. One cell of eight bytes holds both a part of the hash and the number,
/// so that a reader sees all of an entry or nothing. A full table is not grown: the writer makes a larger one and
/// leaves the old one as it is to the readers that have it.

#include <algorithm>
#include <atomic>
#include <bit>
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
  /// Of 2^bits cells. REQUIRES: 4 <= bits <= 31.
  explicit CellTable(unsigned bits) : bits_(bits), cells_(new std::atomic<std::uint64_t>[std::size_t{1} << bits]()) {}

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
  bool full() const { return used_ * 10 >= (std::size_t{7} << bits_); }
  /// The same entries, with room for as many again.
  std::unique_ptr<CellTable> copy_with_room() const {
    auto copy = std::make_unique<CellTable>(
        static_cast<unsigned>(std::max(std::size_t{4}, static_cast<std::size_t>(std::bit_width(live_ * 2)))));
    for (std::size_t at = 0; at < std::size_t{1} << bits_; ++at) {
      const std::uint64_t bits = cells_[at].load(std::memory_order_relaxed);
      if ((bits & kNumberMask) != 0) copy->insert(bits & ~((std::uint64_t{1} << kPrintShift) - 1), unpack(bits));
    }
    return copy;
  }
  std::size_t memory_bytes() const { return sizeof(std::uint64_t) << bits_; }

 private:
  // 31 bits of the hash, a flag, and the number plus one; an erased cell has no number, but is not empty.
  static constexpr unsigned kPrintShift = 33;
  static constexpr std::uint64_t kFlag = std::uint64_t{1} << 32;
  static constexpr std::uint64_t kNumberMask = kFlag - 1;
  static constexpr std::uint64_t kEmpty = 0;
  static constexpr std::uint64_t kErased = kFlag;

  static std::uint64_t pack(std::uint64_t print, Cell cell) {
    return print << kPrintShift | (cell.flag ? kFlag : 0) | (std::uint64_t{cell.number} + 1);
  }
  static Cell unpack(std::uint64_t bits) {
    return {.number = static_cast<std::uint32_t>((bits & kNumberMask) - 1), .flag = (bits & kFlag) != 0};
  }
  std::size_t home(std::uint64_t print) const { return static_cast<std::size_t>(print >> (31 - bits_)); }
  std::size_t next(std::size_t at) const { return (at + 1) & ((std::size_t{1} << bits_) - 1); }

  const unsigned bits_;
  const std::unique_ptr<std::atomic<std::uint64_t>[]> cells_;
  std::size_t used_ = 0;  ///< Cells that are not empty.
  std::size_t live_ = 0;
};

}  // namespace freshet::detail
