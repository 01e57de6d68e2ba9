// SPDX-License-Identifier: Apache-2.0
#include "repo/match/scan.h"

#include <algorithm>
#include <bit>

namespace freshet::detail {

void MarkScan::add(std::uint64_t mark, std::uint64_t weight) {
  all_ += weight;
  for (std::uint32_t bit = 0; bit < kBitsMax; ++bit) {
    if ((weight >> bit & 1) == 0) continue;
    parts_.push_back({.mark = static_cast<std::uint32_t>(std::countr_zero(mark)), .bit = bit});
  }
}

template <unsigned kBits>
MarkScan::Sums<kBits> MarkScan::sums_of(const MarkBlock& block) const {
  const auto groups_with = [&](const Part& part) {
    return block.groups_with[part.mark];
  };
  Sums<kBits> sums{};
  for (std::size_t at = 0; at < parts_.size(); ++at) {
    std::uint64_t carry = groups_with(parts_[at]);
    const std::uint32_t first = parts_[at].bit;
    const bool pair = at + 1 < parts_.size() && parts_[at + 1].bit == first;
    // Two at once: a full adder.
    const std::uint64_t other = pair ? groups_with(parts_[++at]) : 0;
    for (unsigned bit = 0; bit < kBits; ++bit) {
      if (bit < first) continue;
      const std::uint64_t either = sums[bit] ^ carry;
      const std::uint64_t next = sums[bit] & carry;
      sums[bit] = bit == first ? either ^ other : either;
      carry = bit == first ? next | (either & other) : next;
    }
  }
  return sums;
}

template <unsigned kBits>
std::uint64_t MarkScan::at_least(const Sums<kBits>& sums, std::uint64_t least) {
  std::uint64_t greater = 0;
  std::uint64_t equal = ~std::uint64_t{0};
  for (unsigned bit = kBits; bit-- > 0;) {
    if ((least >> bit & 1) != 0) {
      equal &= sums[bit];
    } else {
      greater |= equal & sums[bit];
      equal &= ~sums[bit];
    }
  }
  return greater | equal;
}

template <unsigned kBits>
bool MarkScan::find_as(std::uint64_t least, std::uint64_t most, std::size_t limit,
                       std::pmr::vector<Candidate>& found) const {
  found.clear();
  for (std::uint32_t first = 0; first < groups_; first += MarkBlock::kGroups) {
    const Sums<kBits> sums = sums_of<kBits>(shelf_.mark_blocks[first / MarkBlock::kGroups]);
    std::uint64_t these = at_least<kBits>(sums, least) & ~at_least<kBits>(sums, most + 1);
    if (groups_ - first < MarkBlock::kGroups) these &= (std::uint64_t{1} << (groups_ - first)) - 1;
    if (found.size() + static_cast<std::size_t>(std::popcount(these)) > limit) return false;
    for (; these != 0; these &= these - 1) {
      const auto place = static_cast<std::uint32_t>(std::countr_zero(these));
      Candidate candidate{.group = first + place};
      for (unsigned bit = 0; bit < kBits; ++bit) {
        candidate.weight |= static_cast<std::uint32_t>(sums[bit] >> place & 1) << bit;
      }
      found.push_back(candidate);
    }
  }
  return true;
}

bool MarkScan::find(std::uint64_t least, std::uint64_t most, std::size_t limit,
                    std::pmr::vector<Candidate>& found) const {
  // One more than all of them weigh has its bits, too.
  const auto bits = static_cast<unsigned>(std::bit_width(all_ + 1));
  if (bits <= 5) return find_as<5>(least, most, limit, found);
  if (bits == 6) return find_as<6>(least, most, limit, found);
  return find_as<kBitsMax>(least, most, limit, found);
}

}  // namespace freshet::detail
