// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Which vector instructions are used. Chosen once per process: the best that the processor has, or what FRESHET_VECTOR
/// (portable, avx2, avx512) says when the processor has it. Every level gives the same bytes.

#include <cstdint>
#include <optional>
#include <string_view>

namespace freshet {

enum class VectorLevel : std::uint8_t { portable = 0, avx2 = 1, avx512 = 2 };

std::string_view name_of(VectorLevel level);
std::optional<VectorLevel> vector_level_named(std::string_view name);

/// Whether this processor can run it.
bool is_supported(VectorLevel level);

/// The level of this process.
VectorLevel vector_level();

}  // namespace freshet
