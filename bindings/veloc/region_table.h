// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The layout of a rank's table of regions, and how a Session treats its ranks' errors.

#include <cstddef>
#include <cstdint>
#include <exception>
#include <new>

#include "core/base/result.h"

namespace freshet::veloc {

/// The tensor `regions`: how many ranks there are, how many regions, and of each its id, the most bytes that any rank
/// has of it, and those of this rank; kAbsent where it has none. It is as large for every version, so that it can be
/// read before anything is known of the version; what has no room in it goes on in the tensor `regions.more`.
inline constexpr std::size_t kTableBytes = std::size_t{64} << 10;
inline constexpr std::size_t kWord = sizeof(std::uint64_t);
inline constexpr std::size_t kRegionsFirst = (kTableBytes / kWord - 2) / 3;
inline constexpr std::size_t kRegionsMax = 100'000;
inline constexpr std::uint64_t kAbsent = UINT64_MAX;

inline constexpr std::size_t more_bytes(std::size_t regions) {
  return regions <= kRegionsFirst ? 0 : (regions - kRegionsFirst) * 3 * kWord;
}

/// The version may exist all the same: its holder did not answer, or was found damaged.
inline bool is_unknown(const Error& error) {
  switch (error.code()) {
    case Code::unavailable:
    case Code::timed_out:
    case Code::cancelled:
    case Code::already_exists:
    case Code::io_error:
    case Code::corrupt: return true;
    default: return false;
  }
}

/// One rank's own work, with its exceptions as errors: the other ranks wait for its result.
template <typename Work>
Status caught(const Work& work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return fail(Code::out_of_space, "no memory is left");
  } catch (const std::exception& error) {
    return fail(Code::io_error, error.what());
  }
}

}  // namespace freshet::veloc
