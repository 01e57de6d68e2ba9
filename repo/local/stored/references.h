// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Counts of references: for each stored segment, how many live versions name it, here and on other providers, and for
/// each architecture, how many versions have it. The counts follow from the set of live versions, each of which enters
/// once and leaves once; they are never stored. Private to this room.

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/base/digest.h"
#include "core/model/ids.h"
#include "core/model/manifest.h"

namespace freshet {

/// One thread at a time.
class References {
 public:
  /// `segments` are distinct.
  void add_segments(std::span<const SegmentName> segments);
  void drop_segments(std::span<const SegmentName> segments);
  void add_architecture(const Digest& digest) { ++architectures_[digest]; }
  void drop_architecture(const Digest& digest);
  /// A version whose manifest is damaged: what it names is unknown, so nothing that is stored may be taken for unnamed.
  void add_unknown() { ++unknown_; }

  /// How many name it; 0 for nobody.
  std::uint32_t of(const SegmentName& segment) const;
  std::uint32_t of(const Digest& architecture) const;
  /// Versions that may name anything.
  std::uint64_t unknown() const { return unknown_; }

  bool operator==(const References&) const = default;

 private:
  std::unordered_map<SegmentName, std::uint32_t> segments_;
  std::unordered_map<Digest, std::uint32_t> architectures_;
  std::uint64_t unknown_ = 0;
};

/// The segments that an owner map names, each once, ascending.
std::vector<SegmentName> distinct_segments(const OwnerMap& owners);

}  // namespace freshet
