// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The simulated host's shared memory, with real bytes, and the independent record of what every version's bytes are.

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "core/arena/arena.h"
#include "core/model/tensor.h"

namespace freshet::sim {

/// One publisher life's slabs. Lives as long as anybody maps it, like a memfd.
struct ArenaMemory {
  std::vector<std::vector<std::byte>> slabs;
  std::shared_ptr<ArenaMemory> on_device;  ///< A trainer's slabs of device memory; null: it has none.

  MutableBytes at(const SegmentPlace& place) {
    return MutableBytes(slabs.at(place.slab)).subspan(place.offset, place.bytes);
  }
};

inline bool overlap(const SegmentPlace& a, const SegmentPlace& b) {
  return a.slab == b.slab && a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
}

using TensorBytes = std::vector<std::byte>;

/// What the trainer wrote, told by the trainer itself. A version is known by number and incarnation: a host directory
/// that was lost lets a number be given twice.
class Oracle {
 public:
  using Version = std::vector<TensorBytes>;

  void committed(VersionNumber number, std::uint64_t incarnation, Version version) {
    versions_.emplace(std::pair(number, incarnation), std::move(version));
  }
  const Version* find(VersionNumber number, std::uint64_t incarnation) const {
    const auto version = versions_.find({number, incarnation});
    return version == versions_.end() ? nullptr : &version->second;
  }
  std::size_t count() const { return versions_.size(); }
  /// Versions committed strictly between the two: by that incarnation, or (0) by any, each number once.
  std::uint64_t count_between(VersionNumber after, VersionNumber before, std::uint64_t incarnation) const {
    std::set<VersionNumber> numbers;
    for (auto at = versions_.upper_bound({after, ~std::uint64_t{0}}); at != versions_.end(); ++at) {
      const auto& [number, by] = at->first;
      if (number >= before) break;
      if (incarnation == 0 || by == incarnation) numbers.insert(number);
    }
    return numbers.size();
  }

 private:
  std::map<std::pair<VersionNumber, std::uint64_t>, Version> versions_;
};

}  // namespace freshet::sim
