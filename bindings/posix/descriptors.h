// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Tells which descriptors are copies, and how their sources look. The reader remembers what it opened, and asks the kernel
/// before it believes its memory. A descriptor that it did not open itself (one from before exec, a duplicate, one that
/// came over a socket) is recognised by the copy's own name and note.
///
/// Any thread, signal handlers too.

#include <sys/stat.h>

#include "bindings/posix/kernel.h"
#include "repo/tier/board.h"

namespace freshet::reader {

/// `fd` is a copy, which the kernel describes as `copy`; the source is as `source`.
void remember(int fd, const struct stat& copy, const struct stat& source);

/// When `fd`, which the kernel describes as `seen`, is a copy: makes `seen` the source's. True when it was one.
bool show_source(const tier::Board& board, int fd, struct stat& seen);

/// Puts the source in the place of a copy, at the same offset, for what only the source can do. 0, also when `fd` is no
/// copy; else -errno, and the descriptor is as it was: the source changed or went away.
int hand_back(const tier::Board& board, int fd);

}  // namespace freshet::reader
