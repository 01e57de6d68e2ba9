// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Upper bounds of what groups weigh, from their marks, 64 at a time: a bit of each is in one word, and a word for each
/// bit of the sums, so that one operation adds to 64 sums (Harley and Seal's population count, in Warren, "Hacker's
/// Delight", section 5-1, has the adder). For queries of which each layer is in a good part of all groups.

#include <array>
#include <cstdint>
#include <memory_resource>
#include <vector>

#include "repo/match/shelf.h"

namespace freshet::detail {

/// One thread. Every group has at most the weight that is told here of what was added.
class MarkScan {
 public:
  static constexpr unsigned kBitsMax = 8;

  MarkScan(const Shelf& shelf, std::uint32_t groups, std::pmr::memory_resource* memory)
      : shelf_(shelf), groups_(groups), parts_(memory) {}

  /// A layer that a group with the mark may have. REQUIRES: all together weigh less than 2^kBitsMax.
  void add(std::uint64_t mark, std::uint64_t weight);

  struct Candidate {
    std::uint32_t group = 0;
    std::uint32_t weight = 0;  ///< At most.
  };
  /// The groups that may weigh from `least` to `most`, ascending by number. False when there are more than `limit`.
  bool find(std::uint64_t least, std::uint64_t most, std::size_t limit, std::pmr::vector<Candidate>& found) const;

 private:
  struct Part {
    std::uint32_t mark = 0;
    std::uint32_t bit = 0;  ///< It weighs 2^bit.
  };
  /// How many bits the sums have is known when it is compiled, so that they stay in registers.
  template <unsigned kBits>
  using Sums = std::array<std::uint64_t, kBits>;
  template <unsigned kBits>
  Sums<kBits> sums_of(const MarkBlock& block) const;
  /// The groups with a sum of at least that.
  template <unsigned kBits>
  static std::uint64_t at_least(const Sums<kBits>& sums, std::uint64_t least);
  template <unsigned kBits>
  bool find_as(std::uint64_t least, std::uint64_t most, std::size_t limit, std::pmr::vector<Candidate>& found) const;

  const Shelf& shelf_;
  const std::uint32_t groups_;
  std::pmr::vector<Part> parts_;
  std::uint64_t all_ = 0;  ///< What they weigh.
};

}  // namespace freshet::detail
