#pragma once

/// Which descriptors are copies, and what their sources are like. What is remembered of a descriptor is a help: the
/// kernel is asked before it is believed, and what was never seen (a descriptor from before exec, a duplicate, one that
/// came over a socket) is found from the copy's own name and note.
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
