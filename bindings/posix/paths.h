// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Paths without the C library. Any thread, signal handlers too.

#include "repo/tier/board.h"

namespace freshet::reader {

/// A signal's handler may have a small stack (8 KiB): one of these is all that an open puts there, whatever it does
/// with it. It has room for a tier's path and a copy's name below it.
using PathRoom = char[tier::kPathRoom + tier::kCopyPathBytes + 2];

/// "/proc/self/fd/N", ended by zero.
inline constexpr int kLinkBytes = 32;
void put_descriptor_link(char (&link)[kLinkBytes], int fd);

/// The absolute path of an open file without links, as the kernel tells it, ended by zero; its length, 0 when it is not
/// known.
unsigned long path_of_descriptor(int fd, PathRoom& path);

/// Whether the kernel could read at that address.
bool is_readable(const char* address);

/// The absolute path that a program means, from its spelling alone: no link is followed, nothing is looked at. 0 for
/// what a spelling cannot tell ("..", a slash at the end), what is too long, and addresses that no memory has.
unsigned long absolute_path(int folder, const char* path, PathRoom& out);

}  // namespace freshet::reader
