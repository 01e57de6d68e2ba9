// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Work on several pieces at the same time, on threads that live as long as the call. Private to this room.

#include <cstddef>
#include <functional>

#include "core/base/result.h"

namespace freshet {

/// Calls work(0) … work(count - 1) on at most `threads` threads, this one among them, in ascending order where they
/// wait for each other. Answers the error of the first piece that failed; pieces that had not begun then are left out,
/// and those under way are interrupted (core/base/interruption.h).
Status run_side_by_side(std::size_t count, std::size_t threads, const std::function<Status(std::size_t at)>& work);

}  // namespace freshet
