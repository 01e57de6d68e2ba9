// SPDX-License-Identifier: Apache-2.0
#include "core/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace freshet::detail {

void check_failed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "freshet: broken invariant: %s (%s:%d)\n", condition, file, line);
  std::abort();
}

}  // namespace freshet::detail
