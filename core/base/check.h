// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A check of an invariant. If it fails, the process prints place and condition, and aborts. Only for Freshet's own
/// bugs: bad input from outside is answered with an Error (core/base/result.h).

namespace freshet::detail {
[[noreturn]] void check_failed(const char* condition, const char* file, int line);
}  // namespace freshet::detail

#define FRESHET_CHECK(condition) \
  ((condition) ? static_cast<void>(0) : ::freshet::detail::check_failed(#condition, __FILE__, __LINE__))
