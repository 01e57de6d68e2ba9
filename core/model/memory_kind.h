// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace freshet {

/// The kind of memory that bytes lie in.
///   host:    the processor reads and writes the bytes by their address.
///   pinned:  like host; a GPU's driver also knows the pages and copies them at the bus' speed.
///   device:  a GPU's own memory. The processor must not touch the address.
///   managed: the driver moves the pages between host and GPU. Freshet takes such memory only as a source of copies.
/// Slabs and channels take `host` alone so far. Publishers take tensors of each kind. core/gpu/ tells the kinds apart.
enum class MemoryKind : std::uint8_t { host, pinned, device, managed };

/// False: a value that names no kind.
constexpr bool is_known(MemoryKind kind) { return kind <= MemoryKind::managed; }

/// True: the processor reads the bytes by their address.
constexpr bool is_readable_by_host(MemoryKind kind) { return kind == MemoryKind::host || kind == MemoryKind::pinned; }

}  // namespace freshet
