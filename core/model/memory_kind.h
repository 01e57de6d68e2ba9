// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace freshet {

/// The kind of memory that bytes lie in. `host`: the processor reads and writes the bytes by their address.
enum class MemoryKind : std::uint8_t { host };

}  // namespace freshet
