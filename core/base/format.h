// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Text formatting: fmt behind one name, until the compilers we support have std::format.

#include <fmt/format.h>

namespace freshet {
using fmt::format;
}  // namespace freshet
