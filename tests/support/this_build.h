// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What a test asks of the build that it runs in, and asks at run time: its own code is then the same in the release
/// and with the address sanitizer, and is compiled once for both (tests/CMakeLists.txt).

#include <filesystem>
#include <string>
#include <string_view>

extern "C" {
void __asan_init() __attribute__((weak));
void __tsan_init() __attribute__((weak));
}

namespace freshet::test {

inline bool under_sanitizer() { return __asan_init != nullptr || __tsan_init != nullptr; }

/// A program or library of this build, by its path below the build's folder.
inline std::string built(std::string_view path) {
  return (std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path() / path).string();
}

}  // namespace freshet::test
