// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What can be read of a range of a file that may lie on a failing medium.

#include <cstdint>
#include <functional>

#include "core/base/result.h"
#include "core/model/tensor.h"

namespace freshet::levels {

/// Reads the range at once. If this fails, reads each kChunkBytes of it alone, and halves what fails again down to a
/// block of a file system; what cannot be read becomes zeros. Each failing read of a disk may take seconds, so chunks
/// are halved eight times in all, which finds two bad blocks: a dead megabyte costs 33 failing reads. On out_of_space
/// and errors that are is_no_damage() it stops and returns the error: the bytes may be whole, so zeros must not take
/// their place.
Status read_readable(std::uint64_t at, MutableBytes out,
                     const std::function<Status(std::uint64_t at, MutableBytes out)>& read);

}  // namespace freshet::levels
