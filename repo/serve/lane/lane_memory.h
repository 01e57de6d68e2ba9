// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A lane's memory: one process makes and writes it, another one of the same user maps it for reading only, and neither
/// can take it from under the other (core/arena/slab.h says how it is sealed). It is found through the maker's process id and
/// descriptor (/proc/PID/fd), which the kernel shows to nobody but the same user; and it is known by a mark, a random
/// number that stands behind its payload, so that a number which means another process in another namespace finds
/// nothing. Private to this folder.

#include <array>
#include <cstdint>
#include <memory>

#include "core/arena/slab.h"
#include "core/base/result.h"
#include "core/model/tensor.h"

namespace freshet::rpc {

/// Of a lane that is made here. A multiple of what a chunk has.
inline constexpr std::uint64_t kLaneBytes = std::uint64_t{8} << 20;
inline constexpr std::uint64_t kLaneBytesMin = std::uint64_t{4} << 10;
inline constexpr std::uint64_t kLaneBytesMax = std::uint64_t{64} << 20;

/// Where another process finds a lane. As it comes from there it is hostile: open() checks it.
struct LanePlace {
  std::int32_t pid = 0;
  std::int32_t descriptor = -1;
  std::uint64_t bytes = 0;  ///< Of its payload.
  std::array<std::uint64_t, 2> mark{};
};

/// Its place is constant; the memory is the business of whoever writes it. What somebody else writes may change at any
/// time: copy it before it is proved.
class LaneMemory {
 public:
  /// invalid_argument for other sizes than whole pages within the limits; out_of_space.
  static Result<std::shared_ptr<LaneMemory>> create(std::uint64_t bytes);
  /// Maps another process's. unavailable when it cannot be reached (another user's, another namespace's), corrupt when
  /// something else is there.
  static Result<std::shared_ptr<const LaneMemory>> open(const LanePlace& place);

  const LanePlace& place() const { return place_; }
  /// REQUIRES: created, not opened.
  MutableBytes memory() { return slab_.memory().first(place_.bytes); }
  Bytes memory() const { return slab_.memory().first(place_.bytes); }

 private:
  LaneMemory(Slab slab, const LanePlace& place) : slab_(std::move(slab)), place_(place) {}

  Slab slab_;
  const LanePlace place_;
};

}  // namespace freshet::rpc
