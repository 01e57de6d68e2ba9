// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The loops over elements that the element delta consists of, for each width of element and each vector level. All
/// levels compute the same. For core/delta's own source files; REQUIRES of each function are the callers' to keep.

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/model/dtype.h"
#include "core/model/tensor.h"
#include "core/vector/level.h"

namespace freshet::delta {

inline constexpr std::size_t kWidthMax = 8;      ///< Bytes of the widest element.
inline constexpr std::size_t kPlacesSlack = 64;  ///< find() writes up to so many entries past its result.
inline constexpr std::size_t kPlacesAhead = 64;  ///< change() looks at so many places past its last one.
inline constexpr std::size_t kBatch = 512;       ///< The most changes that one call of the others takes.

/// 128 bits that add up, in two lanes.
struct DeltaSum {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  bool operator==(const DeltaSum&) const = default;
};

/// Where each byte plane of the differences goes, or comes from: plane 0 has the least significant bytes.
using PlanesOut = std::array<std::byte*, kWidthMax>;
using PlanesIn = std::array<const std::byte*, kWidthMax>;

/// The changes of one call: where, and what stood and stands there. Values are native integers of the element's width.
struct ChangeBatch {
  alignas(64) std::array<std::byte, kBatch * kWidthMax> old_bits;
  alignas(64) std::array<std::byte, kBatch * kWidthMax> new_bits;
  alignas(64) std::array<std::byte, kBatch * kWidthMax> differences;
};

struct Kernels {
  /// Writes `first` plus the index of each element in which the ranges differ to `places`, in order; returns how many.
  /// REQUIRES: room for `elements` + kPlacesSlack.
  std::size_t (*find)(const std::byte* base, const std::byte* target, std::size_t elements, std::uint32_t first,
                      std::uint32_t* places);

  /// Fills the batch from both ranges at `places` and writes the differences' planes.
  void (*difference)(const std::byte* base, const std::byte* target, const std::uint32_t* places, std::size_t count,
                     const PlanesOut& planes, ChangeBatch& batch);

  /// Fills the batch: old bits from `memory` at `places`, new ones by adding the planes' differences (or subtracting:
  /// `reverse`); then writes the new bits to `memory`. REQUIRES: the kPlacesAhead entries behind the last place are
  /// places too (those of the next call, or any): they are fetched into the cache.
  void (*change)(std::byte* memory, const std::uint32_t* places, std::size_t count, const PlanesIn& planes,
                 bool reverse, ChangeBatch& batch);

  /// The sum over the batch of h(first + place, new) - h(first + place, old).
  DeltaSum (*sum)(DeltaSum key, std::uint64_t first, const std::uint32_t* places, std::size_t count,
                  const ChangeBatch& batch);
};

const Kernels& kernels_of(DType dtype, VectorLevel level);

}  // namespace freshet::delta
