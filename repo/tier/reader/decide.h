// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Decides at open: the finished copy, or the source. Any thread, signal handlers too.

#include <sys/stat.h>

#include "repo/tier/board.h"
#include "repo/tier/reader/paths.h"

namespace freshet::tier::reader {

/// What openat() does, with -errno for an error.
int open_file(int folder, const char* path, int flags, unsigned mode);

/// What source_behind() says of a path that is opened for writing; kNoCopy at once for one that can lead to no copy.
int source_of_written(const char* path, int folder = -100);

/// A descriptor of the finished copy, which the kernel describes as `copy`; -1 when this user has none. Of
/// `flags` O_CLOEXEC, O_NOFOLLOW, O_NOATIME and O_NONBLOCK count. `path` is room for its name.
int open_finished(tier::Board& board, const tier::Identity& identity, int flags, struct stat& copy, PathRoom& path,
                  bool counts = false);

/// 0 or the result, as the C library's functions return it.
int returned(long result);

}  // namespace freshet::tier::reader
