// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace freshet {

/// The kind of memory that bytes lie in.
///   host:    the processor reads and writes the bytes by their address.
///   pinned:  like host; a GPU's driver also knows the pages and copies them at the bus' speed.
///   device:  a GPU's own memory. The processor must not touch the address.
///   managed: the driver moves the pages between host and GPU. Freshet takes such memory only as a source of copies.
/// Slabs, channels and publishers take `host` alone so far; core/gpu/ tells the kinds apart.
enum class MemoryKind : std::uint8_t { host, pinned, device, managed };

}  // namespace freshet
