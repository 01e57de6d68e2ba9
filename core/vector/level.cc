// SPDX-License-Identifier: Apache-2.0
#include "core/vector/level.h"

#include <cstdlib>

namespace freshet {
namespace {

VectorLevel choose() {
  if (const char* const wanted = std::getenv("FRESHET_VECTOR")) {
    const auto level = vector_level_named(wanted);
    if (level && is_supported(*level)) return *level;
  }
  for (const VectorLevel level : {VectorLevel::avx512, VectorLevel::avx2}) {
    if (is_supported(level)) return level;
  }
  return VectorLevel::portable;
}

}  // namespace

std::string_view name_of(VectorLevel level) {
  switch (level) {
    case VectorLevel::portable: return "portable";
    case VectorLevel::avx2: return "avx2";
    case VectorLevel::avx512: return "avx512";
  }
  return "unknown";
}

std::optional<VectorLevel> vector_level_named(std::string_view name) {
  for (const VectorLevel level : {VectorLevel::portable, VectorLevel::avx2, VectorLevel::avx512}) {
    if (name == name_of(level)) return level;
  }
  return std::nullopt;
}

bool is_supported(VectorLevel level) {
#if defined(__x86_64__)
  switch (level) {
    case VectorLevel::portable: return true;
    case VectorLevel::avx2: return __builtin_cpu_supports("avx2") != 0;
    case VectorLevel::avx512: return __builtin_cpu_supports("avx512f") != 0;
  }
  return false;
#else
  return level == VectorLevel::portable;
#endif
}

VectorLevel vector_level() {
  static const VectorLevel level = choose();
  return level;
}

}  // namespace freshet
