// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Numbers that the environment sets for tests which can run longer, or again from a seed.

#include <cstdint>
#include <cstdlib>

namespace freshet {

inline std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
}

}  // namespace freshet
