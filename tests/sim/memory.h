#pragma once

/// The simulated host's shared memory, with real bytes, and the independent record of what every version's bytes are.

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "core/arena.h"
#include "core/tensor.h"

namespace freshet::sim {

/// One publisher life's slabs. Lives as long as anybody maps it, like a memfd.
struct ArenaMemory {
  std::vector<std::vector<std::byte>> slabs;

  MutableBytes at(const SegmentPlace& place) {
    return MutableBytes(slabs.at(place.slab)).subspan(place.offset, place.bytes);
  }
};

using TensorBytes = std::vector<std::byte>;

/// What the trainer wrote, told by the trainer itself.
class Oracle {
 public:
  struct Version {
    std::uint64_t incarnation = 0;
    std::vector<TensorBytes> tensors;
  };

  void committed(VersionNumber number, Version version) { versions_.emplace(number, std::move(version)); }
  const Version* find(VersionNumber number) const {
    const auto version = versions_.find(number);
    return version == versions_.end() ? nullptr : &version->second;
  }
  VersionNumber newest() const { return versions_.empty() ? 0 : versions_.rbegin()->first; }
  std::size_t count() const { return versions_.size(); }
  /// Committed versions strictly between the two.
  std::uint64_t count_between(VersionNumber after, VersionNumber before) const {
    std::uint64_t count = 0;
    for (auto it = versions_.upper_bound(after); it != versions_.end() && it->first < before; ++it) ++count;
    return count;
  }

 private:
  std::map<VersionNumber, Version> versions_;
};

}  // namespace freshet::sim
